"""How fast the relay drains an outbox to Kafka: `make bench`.

PostgreSQL, Apache Kafka and the relay share the machine. Durability is that of the promise: fsync
and synchronous_commit on, acks=all, idempotent producer. The run checks its own result: records on
the topic are counted and their order per key is verified, by another Kafka client.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass

import psycopg
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres

PAYLOAD = {"note": "x" * 240}
"""About 300 bytes of JSON together with the two numbers of each event."""
CHUNK = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One drain."""

    seconds: float
    cpu_seconds: float
    records: int
    missing: int
    inversions: int


def main() -> int:
    """Run the benchmark and print its table; exit status 1 for a missing or inverted record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting PostgreSQL and Kafka", total=arguments.runs)
        with EmbeddedPostgres() as postgres, EmbeddedKafka() as kafka:
            runs = []
            for number in range(arguments.runs):
                progress.update(task, description=f"run {number + 1} of {arguments.runs}")
                runs.append(
                    one_run(postgres, kafka, number, events=arguments.events, keys=arguments.keys)
                )
                progress.advance(task)
    console.print(_table(runs, events=arguments.events, keys=arguments.keys))
    return int(any(run.missing or run.inversions for run in runs))


def one_run(
    postgres: EmbeddedPostgres, kafka: EmbeddedKafka, number: int, *, events: int, keys: int
) -> Run:
    """Fill a fresh outbox, drain it with one relay, read the topic back."""
    database = f"bench{number}"
    postgres.create_database(database)
    shield = ShieldTx(
        Settings(
            source="bench",
            database_url=postgres.url(database),
            kafka_bootstrap=kafka.bootstrap,
            topic_prefix=f"run{number}.",
        )
    )
    shield.schema.upgrade()
    shield.declare("bench.happened")
    shield.broker.topics().create(shield.topics(), partitions=8, replication=1)
    _fill(shield, events=events, keys=keys)
    with psycopg.connect(postgres.url(database).replace("+psycopg", ""), autocommit=True) as admin:
        # As autovacuum would have done by the time that a real backlog has grown.
        admin.execute("VACUUM ANALYZE")
        admin.execute("CHECKPOINT")

    relay = shield.relay()
    relay.renew()
    began, cpu_began = time.monotonic(), os.times()
    published = 0
    while published < events:
        published += relay.run_once().published
    seconds = time.monotonic() - began
    cpu = os.times()
    relay.close()
    shield.engine.dispose()

    records = _read(kafka.bootstrap, f"run{number}.bench.happened.commit")
    last: dict[str, int] = defaultdict(int)
    inversions = 0
    for key, sequence in records:
        inversions += sequence <= last[key]
        last[key] = sequence
    return Run(
        seconds=seconds,
        cpu_seconds=cpu.user + cpu.system - cpu_began.user - cpu_began.system,
        records=len(records),
        missing=events - len(set(records)),
        inversions=inversions,
    )


def _fill(shield: ShieldTx, *, events: int, keys: int) -> None:
    with Session(shield.engine) as session:
        for start in range(0, events, CHUNK):
            shield.outbox.add_all(
                session,
                (
                    Event(
                        type="bench.happened",
                        key=f"key-{n % keys}",
                        payload={"n": n // keys + 1, "key": f"key-{n % keys}"} | PAYLOAD,
                    )
                    for n in range(start, min(start + CHUNK, events))
                ),
            )
            session.commit()


def _read(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """Read a topic whole with a client that shieldtx does not use: keys and numbers."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.partition.eof": False}
    )
    try:
        partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {
            p: reader.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
            for p in partitions
        }
        reader.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: list[tuple[str, int]] = []
        while len(found) < sum(ends.values()):
            for message in reader.consume(num_messages=1000, timeout=10):
                body = json.loads(message.value())
                found.append((body["key"], body["n"]))
        return found
    finally:
        reader.close()


def _table(runs: list[Run], *, events: int, keys: int) -> Table:
    rates = [events / run.seconds for run in runs]
    table = Table(
        title=f"Relay, {events:,} events of about 300 B, {keys:,} keys, {os.cpu_count()} cores"
    )
    table.add_column("figure")
    table.add_column("median", justify="right")
    table.add_column("lowest", justify="right")
    table.add_column("highest", justify="right")
    table.add_row(
        "events per second, ordered per key",
        *(f"{f(rates):,.0f}" for f in (statistics.median, min, max)),
    )
    cpu = [run.cpu_seconds / events * 1e6 for run in runs]
    table.add_row(
        "CPU of the relay, µs per event", *(f"{f(cpu):,.0f}" for f in (statistics.median, min, max))
    )
    table.add_row("records missing", str(sum(run.missing for run in runs)), "", "")
    table.add_row(
        "records doubled", str(sum(run.records for run in runs) - events * len(runs)), "", ""
    )
    table.add_row("order inversions", str(sum(run.inversions for run in runs)), "", "")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
