"""kafka-python's `send()` in a loop: the records of the relay without a database."""

from __future__ import annotations

from kafka import KafkaProducer

from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.baseline_records import records_of
from shieldtx.scheduling.gc_tuning import few_collections


def main() -> None:
    """Send all records and flush."""
    reporter = ProgressReporter()
    warm, records = records_of(reporter.job)
    producer = KafkaProducer(
        bootstrap_servers=reporter.job["bootstrap"],
        acks="all",
        enable_idempotence=True,
        batch_size=262_144,
        linger_ms=5,
    )
    topic = reporter.job["topic"]
    producer.partitions_for(topic)
    # Cheaper than to keep all futures, or to count acknowledgements.
    failures: list[BaseException] = []
    with few_collections():
        reporter.ready()
        for begin, end in ((0, warm), (warm, len(records))):
            for value, key, headers, partition in records[begin:end]:
                producer.send(topic, value, key, headers, partition).add_errback(failures.append)
            producer.flush()
            reporter.sample(end - len(failures))
        reporter.await_end()
    producer.close()


if __name__ == "__main__":
    main()
