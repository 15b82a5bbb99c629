"""Reads Kafka with another client than shieldtx's: librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

ANSWER_S = 10.0
WHOLE_TOPIC_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRecord:
    """The position of a record, and its order."""

    topic: str
    partition: int
    offset: int
    household_id: int
    basket_id: int


def read_whole(bootstrap: str, topic: str) -> list[TopicRecord]:
    """Return all records of a topic, in order per partition; raises as `following` does."""
    with following(bootstrap, topic) as new_records:
        return sorted(new_records(), key=lambda record: (record.partition, record.offset))


@contextmanager
def following(bootstrap: str, topic: str) -> Iterator[Callable[[], list[TopicRecord]]]:
    """Yield a function that returns the records of a topic that it has not returned yet.

    It raises KafkaException, and TimeoutError when it does not reach the end within a minute.
    """
    with _consumer(bootstrap, group="audit") as consumer:
        places = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in _partitions(consumer, topic)]
        consumer.assign(places)
        read = {place.partition: 0 for place in places}

        def new_records() -> list[TopicRecord]:
            deadline = time.monotonic() + WHOLE_TOPIC_S
            ends = {
                place.partition: consumer.get_watermark_offsets(place, timeout=ANSWER_S)[1]
                for place in places
            }
            records = []
            while any(read[p] < ends[p] for p in read):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic} could not be read in {WHOLE_TOPIC_S:.0f} s")
                # One by one: a full batch would wait for further records.
                message = consumer.poll(ANSWER_S)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                records.append(_record(message))
                read[records[-1].partition] = records[-1].offset + 1
            return records

        yield new_records


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
