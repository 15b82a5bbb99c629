"""kafka-python's `send()` in a loop: the records of the relay without a database."""

from __future__ import annotations

from kafka import KafkaProducer

from benchmarks.subjects.raw_records import records_of
from benchmarks.subjects.telling import Telling


def main() -> None:
    """Send all records and flush."""
    telling = Telling()
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
    telling.ready()
    futures = []
    for begin, end in ((0, warm), (warm, len(records))):
        for record, partition in records[begin:end]:
            futures.append(
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=partition,
                )
            )
        producer.flush()
        telling.sample(sum(future.succeeded() for future in futures))
    telling.await_end()
    producer.close()


if __name__ == "__main__":
    main()
