"""Reads Kafka with another client than shieldtx's: librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

ANSWER_S = 10.0
WHOLE_TOPIC_S = 60.0
_BATCH = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRecord:
    """The position of a record, and its order."""

    topic: str
    partition: int
    offset: int
    household_id: int
    basket_id: int


def read_whole(bootstrap: str, topic: str) -> list[TopicRecord]:
    """Return all records of a topic, in order per partition.

    Raises KafkaException, and TimeoutError when the topic has no end within a minute.
    """
    with _consumer(bootstrap, group="audit") as consumer:
        unread = set(_partitions(consumer, topic))
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in unread])
        records = []
        deadline = time.monotonic() + WHOLE_TOPIC_S
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read whole in {WHOLE_TOPIC_S:.0f} s")
            for message in consumer.consume(_BATCH, timeout=1.0):
                if (record := _record_or_end(message)) is not None:
                    records.append(record)
                else:
                    unread.discard(message.partition())
    return sorted(records, key=lambda record: (record.partition, record.offset))


@contextmanager
def following(bootstrap: str, topic: str) -> Iterator[Callable[[], frozenset[int]]]:
    """Yield a function that returns the baskets of all records that a topic has by then.

    It raises KafkaException, and TimeoutError when Kafka does not answer.
    """
    # A consumer that reads asks for an end only after its fetch, up to 0.5 s for each partition.
    with (
        _consumer(bootstrap, group="audit") as consumer,
        _consumer(bootstrap, group="audit") as other,
    ):
        read = dict.fromkeys(_partitions(consumer, topic), 0)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in read])
        baskets: set[int] = set()

        def on_topic() -> frozenset[int]:
            deadline = time.monotonic() + ANSWER_S
            ends = {
                p: other.get_watermark_offsets(TopicPartition(topic, p), timeout=ANSWER_S)[1]
                for p in read
            }
            while any(read[p] < ends[p] for p in read):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic} could not be read in {ANSWER_S:.0f} s")
                # One by one: a full batch would wait for further records.
                message = consumer.poll(ANSWER_S)
                record = None if message is None else _record_or_end(message)
                if record is not None:
                    read[record.partition] = record.offset + 1
                    baskets.add(record.basket_id)
            return frozenset(baskets)

        yield on_topic


def lag(bootstrap: str, group: str, topic: str) -> int:
    """Return how many records of a topic a consumer group has not committed yet."""
    with _consumer(bootstrap, group=group) as consumer:
        places = [TopicPartition(topic, p) for p in _partitions(consumer, topic)]
        behind = 0
        for place in consumer.committed(places, timeout=ANSWER_S):
            low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
            # Below zero: no offset has been committed yet.
            behind += high - (place.offset if place.offset >= 0 else low)
        return behind


@contextmanager
def _consumer(bootstrap: str, *, group: str) -> Iterator[Consumer]:
    """Open a client that changes nothing: it joins no group and commits nothing."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def _record_or_end(message: Message) -> TopicRecord | None:
    """Return the record of a message; None for the end of a partition. Raises KafkaException."""
    if (error := message.error()) is None:
        return _record(message)
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  its public name
        return None
    raise KafkaException(error)


def _record(message: Message) -> TopicRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    key, basket = message.key(), dict(message.headers() or []).get("ce_bizkey")
    if topic is None or partition is None or offset is None or key is None or basket is None:
        raise ValueError(f"{topic}[{partition}]@{offset} is about no order")
    return TopicRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        household_id=int(key),
        basket_id=int(basket),
    )
