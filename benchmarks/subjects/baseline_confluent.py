"""confluent-kafka's `produce()` with a callback, in a loop: no database."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.baseline_records import records_of
from shieldtx.scheduling.gc_tuning import few_collections


def main() -> None:
    """Produce all records and flush."""
    reporter = ProgressReporter()
    warm, records = records_of(reporter.job)
    producer = Producer(
        {
            "bootstrap.servers": reporter.job["bootstrap"],
            "acks": "all",
            "enable.idempotence": True,
            "batch.size": 262_144,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    topic = reporter.job["topic"]
    producer.list_topics(topic, timeout=10)
    acknowledged = 0

    def note(error: Any, _: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    with few_collections():
        reporter.ready()
        for begin, end in ((0, warm), (warm, len(records))):
            for value, key, headers, partition in records[begin:end]:
                producer.produce(topic, value, key, partition, note, headers=headers)
            producer.flush()
            reporter.sample(acknowledged)
        reporter.await_end()


if __name__ == "__main__":
    main()
