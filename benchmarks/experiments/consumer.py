"""The consumer on a topic full of records, compared with an inbox in plain SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Producer

from benchmarks.data.events import KeyPosition, check_beginning
from benchmarks.harness.context import Bench, ExperimentResult, compared, rates, run_subjects
from benchmarks.harness.samples import BenchmarkFailed, Run
from benchmarks.harness.servers import RunEnvironment
from benchmarks.subjects.application import HAS_LISTS
from benchmarks.subjects.baseline_records import record_at
from shieldtx.brokers.partitioning import partition_of

FIGURES: Final = {
    "consumer_vs_single": ("consumer", "single_consumer"),
    "consumer_list_vs_single": ("consumer_list", "single_consumer"),
    "consumer_duplicates": ("consumer_duplicates", "consumer"),
}
WARM: Final = 500
LIST_TIMES: Final = 5
"""Factor of the records for the handler of lists, which would be too fast otherwise."""


def run(bench: Bench) -> ExperimentResult:
    """Consume the same topics with each subject."""
    records, keys = bench.sizes.consumed, bench.sizes.keys
    with bench.servers.place() as plain, bench.servers.place() as doubled:
        produce(plain, records * LIST_TIMES + WARM, keys=keys)
        produce(doubled, (records + WARM) // 2, keys=keys, copies=2)

        def reading(topic: RunEnvironment, **job: Any) -> Callable[[], Run]:
            return lambda: consume(bench, topic, records=records, **job)

        subjects = {
            "single_consumer": reading(plain, module="single_consumer"),
            "consumer": reading(plain),
            "consumer_duplicates": reading(doubled, copies=2),
        }
        remarks = {}
        if HAS_LISTS:
            subjects["consumer_list"] = reading(plain, lists=True, times=LIST_TIMES)
        else:
            remarks["consumer_list_vs_single"] = "left out, ConsumerGroup has no handles_many"
        runs = bench.by_turns("consumer", subjects)
    return ExperimentResult(figures=compared(runs, FIGURES), absolutes=rates(runs), remarks=remarks)


def produce(place: RunEnvironment, events: int, *, keys: int, copies: int = 1) -> None:
    """Fill the topic with the records of the events, each followed by its copies."""
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 3,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for index in range(events):
        record = record_at(index, keys=keys, prefix=place.prefix)
        partition = partition_of(record.key or b"", 8)
        for _ in range(copies):
            producer.produce(
                record.topic,
                record.value,
                record.key,
                partition,
                lambda error, _: failures.append(error) if error else None,
                headers=list(record.headers),
            )
    if producer.flush(60) or failures:
        raise BenchmarkFailed(f"the topic cannot be filled: {failures[:1]}")


def consume(
    bench: Bench,
    topic: RunEnvironment,
    *,
    records: int,
    module: str = "consumer",
    lists: bool = False,
    copies: int = 1,
    times: int = 1,
    warm: int = WARM,
    **more: Any,
) -> Run:
    """Consume into a separate database and count the effects; `more` is for the subject."""
    group = f"bench-{uuid4()}"
    with bench.servers.place() as own:
        place = replace(own, prefix=topic.prefix)
        run = run_subjects(
            place,
            module,
            [{"group": group, "lists": lists, **more}],
            events=records * times,
            warm=warm,
        )
        with place.connect() as connection:
            rows = connection.execute("SELECT key, n FROM bench_effect ORDER BY id").fetchall()
    effects = [KeyPosition(key=key, number=number) for key, number in rows]
    reading = check_beginning(effects, (records * times + warm) // copies)
    reading.require_whole("the effects of a consumer")
    return run
