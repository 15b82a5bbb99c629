"""kafka-python's `send()` in a loop: the records of the relay without a database."""

from __future__ import annotations

from kafka import KafkaProducer

from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.baseline_records import records_of
from shieldtx.scheduling.gc_tuning import few_collections


def main() -> None:
    """Send all records and flush."""
    telling = ProgressReporter()
    warm, records = records_of(telling.job)
    producer = KafkaProducer(
        bootstrap_servers=telling.job["bootstrap"],
        acks="all",
        enable_idempotence=True,
        batch_size=262_144,
        linger_ms=5,
    )
    topic = telling.job["topic"]
    producer.partitions_for(topic)
    # Cheaper than to keep all futures, or to count what is acknowledged.
    failures: list[BaseException] = []
    with few_collections():
        telling.ready()
        for begin, end in ((0, warm), (warm, len(records))):
            for value, key, headers, partition in records[begin:end]:
                producer.send(topic, value, key, headers, partition).add_errback(failures.append)
            producer.flush()
            telling.sample(end - len(failures))
        telling.await_end()
    producer.close()


if __name__ == "__main__":
    main()
