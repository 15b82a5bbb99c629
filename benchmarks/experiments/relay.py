"""The relay on a backlog, compared with the peers and the bare clients, in one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.data.events import check, read_topic, written
from benchmarks.data.fill_outbox import fill
from benchmarks.harness import peer_env
from benchmarks.harness.child_process import Subject
from benchmarks.harness.context import (
    WARM,
    Bench,
    ExperimentResult,
    compared,
    measure,
    rates,
    run_subjects,
)
from benchmarks.harness.samples import Run

FIGURES: Final = {
    "relay_kafka_python_vs_txoutbox_ordered": ("relay_kafka_python", "txoutbox_ordered"),
    "relay_kafka_python_vs_baseline": ("relay_kafka_python", "baseline_kafka_python"),
    "relay_confluent_vs_txoutbox_ordered": ("relay_confluent", "txoutbox_ordered"),
    "relay_two_processes_vs_one": ("relay_two_processes", "relay_kafka_python"),
}
TXOUTBOX_BATCH: Final = 1_000
FASTSTREAM_BATCH: Final = 500
FASTSTREAM_WORKERS: Final = 16


def run(bench: Bench) -> ExperimentResult:
    """Drain the same sequence of events with each subject."""
    runs = bench.by_turns(
        "relay",
        {
            "relay_kafka_python": lambda: ours(bench, "kafka-python", relays=1),
            "txoutbox_ordered": lambda: txoutbox_ordered(bench),
            "relay_confluent": lambda: ours(bench, "confluent-kafka", relays=1),
            "baseline_kafka_python": lambda: baseline(bench, "baseline_kafka_python"),
            "relay_two_processes": lambda: ours(bench, "kafka-python", relays=2),
            "baseline_confluent": lambda: baseline(bench, "baseline_confluent"),
            "baseline_sql": lambda: baseline_sql(bench),
        },
    )
    remarks = {}
    if bench.sizes.with_slow_peer:
        # Separately and once: its round takes longer than a round of all the others.
        once = replace(bench, sizes=replace(bench.sizes, rounds=1))
        runs |= once.by_turns("relay", {"faststream_outbox": lambda: faststream_outbox(bench)})
    else:
        remarks["faststream_outbox"] = "left out, it takes too long for a quick run"
    return ExperimentResult(figures=compared(runs, FIGURES), absolutes=rates(runs), remarks=remarks)


def ours(bench: Bench, client: str, *, relays: int, metrics: bool = False) -> Run:
    """Drain with one or several relay processes of shieldtx, with metrics or without."""
    events, keys = bench.sizes.events, bench.sizes.keys
    with bench.servers.place() as place:
        with place.connect() as connection:
            fill(connection, begin=0, end=events + WARM, keys=keys)
        place.tidy()
        job = {"client": client, "relays": relays, "metrics": metrics}
        run = run_subjects(place, "relay", [job] * relays, events=events)
        reading = check(read_topic(place.bootstrap, place.topic), written(events + WARM, keys))
        reading.require_whole(f"{relays} relays with {client}")
    return run


def baseline(bench: Bench, name: str) -> Run:
    """Send the same records with a bare client."""
    events, keys = bench.sizes.events, bench.sizes.keys
    with bench.servers.place() as place:
        job = {
            "keys": keys,
            "warm": WARM,
            "events": events,
            "partitions": bench.sizes.partitions,
        }
        run = run_subjects(place, name, [job], events=events)
        reading = check(read_topic(place.bootstrap, place.topic), written(events + WARM, keys))
        reading.require_whole(name)
    return run


def baseline_sql(bench: Bench) -> Run:
    """Claim and settle without sending anything."""
    with bench.servers.place() as place:
        with place.connect() as connection:
            fill(connection, begin=0, end=bench.sizes.events + WARM, keys=bench.sizes.keys)
        place.tidy()
        return run_subjects(place, "baseline_sql", [{}], events=bench.sizes.events)


def txoutbox_ordered(bench: Bench) -> Run:
    """Drain with txoutbox."""
    return _peer(
        bench,
        "txoutbox_ordered",
        peer_env.TXOUTBOX_FILL,
        {"batch": TXOUTBOX_BATCH},
        ordered=True,
    )


def faststream_outbox(bench: Bench) -> Run:
    """Drain with faststream-outbox."""
    return _peer(
        bench,
        "faststream_outbox_kafka",
        peer_env.FASTSTREAM_FILL,
        {"batch": FASTSTREAM_BATCH, "workers": FASTSTREAM_WORKERS},
        ordered=False,
    )


def _peer(bench: Bench, name: str, fill_: str, job: dict[str, int], *, ordered: bool) -> Run:
    events, keys = bench.sizes.events, bench.sizes.keys
    with bench.servers.place(tables=False) as place:
        statement = peer_env.fill_of(fill_, topic=place.topic, events=events + WARM, keys=keys)
        with Subject(
            name, place.job | job | {"fill": statement}, python=peer_env.python()
        ) as subject:
            run = measure(place, [subject], events=events)
        reading = check(read_topic(place.bootstrap, place.topic), written(events + WARM, keys))
        reading.require_whole(name, ordered=ordered)
    return run
