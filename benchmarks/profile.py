"""`python -m benchmarks.profile`: where a relay or a consumer spends its time, by py-spy."""

from __future__ import annotations

import argparse
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from benchmarks.data.fill_outbox import fill
from benchmarks.experiments.consumer import produce
from benchmarks.harness import peer_env
from benchmarks.harness.child_process import BUILD, Subject
from benchmarks.harness.context import measure
from benchmarks.harness.samples import BenchmarkFailed, Run
from benchmarks.harness.servers import RunEnvironment, Servers

KEYS: Final = 1_000
RATE: Final = 400
"""Samples per second of the threads that hold Python's lock: of work, not of waiting."""

Parts = Sequence[tuple[str, Sequence[str]]]

RELAY_PARTS: Final[Parts] = (
    ("building Kafka's batches", ("(kafka/record/",)),
    ("building records: headers, encoding", ("(shieldtx/brokers/cloudevents.py",)),
    ("client calls, partitions, responses", ("(shieldtx/brokers/", "(kafka/", "(confluent_kafka/")),
    ("building events from rows", ("(shieldtx/store/statements/envelope_columns.py",)),
    ("settle", ("SqlRelayStore.settle ",)),
    ("claim: statement, response, rows", ("SqlRelayStore.claim ",)),
)
CONSUMER_PARTS: Final[Parts] = (
    ("decoding", ("(shieldtx/brokers/cloudevents.py",)),
    ("fetching from Kafka", ("(shieldtx/brokers/", "(kafka/")),
    ("receive: dedupe, order, attempts", ("(shieldtx/store/inbox_receiver.py",)),
    ("handlers", ("(benchmarks/subjects/application.py",)),
    (
        "settle: status and effects in one transaction",
        ("(shieldtx/store/", "(sqlalchemy/", "(psycopg/"),
    ),
)
SUBJECTS: Final[Mapping[str, tuple[str, int, Parts, Mapping[str, Any]]]] = {
    "relay": ("relay", 300_000, RELAY_PARTS, {"client": "kafka-python"}),
    "relay-confluent": ("relay", 300_000, RELAY_PARTS, {"client": "confluent-kafka"}),
    "consumer": ("consumer", 20_000, CONSUMER_PARTS, {"lists": False}),
    "consumer-list": ("consumer", 100_000, CONSUMER_PARTS, {"lists": True}),
    "consumer-refusing": ("consumer", 10_000, CONSUMER_PARTS, {"lists": False, "refuses": 1}),
    "consumer-refusing-some": ("consumer", 20_000, CONSUMER_PARTS, {"lists": False, "refuses": 20}),
}


def main() -> None:
    """Profile one subject and print its parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("subject", choices=SUBJECTS, nargs="?", default="relay")
    name = parser.parse_args().subject
    module, events, parts, job = SUBJECTS[name]
    stacks = BUILD / f"profile-{name}.txt"
    console = Console()
    with console.status("preparing"), Servers() as servers, servers.place() as place:
        _prepare(place, module, events)
        console.print(f"{events:,} events through the {name}; its stacks: {stacks}")
        job = place.job | dict(job) | {"group": f"profile-{uuid4()}"}
        run = _run(place, module, job, events, stacks)
    console.print(_table(name, run, _shares(stacks.read_text().splitlines(), parts)))


def _prepare(place: RunEnvironment, module: str, events: int) -> None:
    if module == "consumer":
        produce(place, events, keys=KEYS)
        return
    with place.connect() as connection:
        fill(connection, begin=0, end=events, keys=KEYS)
    place.tidy()


def _run(
    place: RunEnvironment, module: str, job: Mapping[str, Any], events: int, stacks: Path
) -> Run:
    """Measure the subject over four fifths of the events while py-spy samples it."""
    py_spy = peer_env.python().with_name("py-spy")
    look = [str(py_spy), "record", "--gil", "--format", "raw", "--rate", str(RATE)]
    with ExitStack() as running:
        subject = running.enter_context(Subject(module, job))
        subject.await_ready()
        spy = subprocess.Popen(  # noqa: S603  of our own environment
            [*look, "--pid", str(subject.pid), "--output", str(stacks)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.callback(spy.kill)
        run = measure(place, [subject], events=events * 4 // 5, warm=events // 10)
        spy.send_signal(signal.SIGINT)
        said, _ = spy.communicate(timeout=60)
    if spy.returncode or not stacks.exists():
        raise BenchmarkFailed(f"py-spy could not look (it may need root, or ptrace): {said}")
    return run


def _shares(stacks: Iterable[str], parts: Parts) -> dict[str, float]:
    """Return the share of samples of each part; a stack belongs to the first part that it names."""
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, looks = line.rpartition(" ")
        if "benchmarks/subjects" in stack or "threading.py" in stack:
            found = (part for part, words in parts if any(word in stack for word in words))
            counts[next(found, "everything else")] += int(looks)
    total = counts.total() or 1
    return {part: count / total for part, count in counts.most_common()}


def _table(name: str, run: Run, shares: Mapping[str, float]) -> Table:
    table = Table(title=f"{name}: {run.rate:,.0f} events/s, {run.cpu_us:.0f} µs of CPU an event")
    table.add_column("part")
    table.add_column("share", justify="right")
    table.add_column("CPU µs/event", justify="right")
    for part, share in shares.items():
        table.add_row(part, f"{share:.0%}", f"{share * run.cpu_us:.1f}")
    return table


if __name__ == "__main__":
    main()
