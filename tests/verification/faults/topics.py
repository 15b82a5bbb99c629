"""The topics as another client reads them: whole, with confluent-kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

TIMEOUT_S = 20.0

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """A record of the banks."""

    topic: str
    partition: int
    offset: int
    id: UUID | None
    """None if the record has no event id."""
    kind: str
    key: str | None
    seq: int | None
    """Number of the transfer, if the record is one."""
    causation: UUID | None
    """For a rollback: the transfer that it takes back."""

    @property
    def place(self) -> Place:
        """Return the position of the record."""
        return self.topic, self.partition, self.offset


def read_whole(bootstrap: str, topics: Sequence[str]) -> list[Read]:
    """Read every record of the topics; a missing topic counts as empty.

    Raises KafkaException when the broker is unreachable, TimeoutError when it does not deliver.
    """
    return [_read(message) for message in messages(bootstrap, topics)]


def messages(bootstrap: str, topics: Sequence[str]) -> Iterator[Message]:
    """Yield every record of the topics as a message of the client; raises like `read_whole`."""
    consumer = reader(bootstrap)
    try:
        left = _ends(consumer, topics)
        consumer.assign([TopicPartition(t, p, low) for (t, p), (low, _) in left.items()])
        waiting = {place: high for place, (low, high) in left.items() if high > low}
        while waiting:
            # One at a time: for several the client would wait until all have arrived, or the time
            # is over.
            message = consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError(f"no records of {sorted(waiting)} within {TIMEOUT_S} s")
            error, next_ = message.error(), message.offset()
            if error is None:
                yield message
                next_ += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            place = (message.topic(), message.partition())
            if next_ >= waiting.get(place, 0):
                waiting.pop(place, None)
    finally:
        consumer.close()


def reader(bootstrap: str) -> Consumer:
    """Make a consumer that is never a member of a group: partitions are assigned explicitly."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"whole-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            # The last offsets may be those of transaction markers, which are not records.
            "enable.partition.eof": True,
        }
    )


def _ends(consumer: Consumer, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    known = consumer.list_topics(timeout=TIMEOUT_S).topics
    return {
        (topic, partition): consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=TIMEOUT_S
        )
        for topic in topics
        if topic in known and known[topic].error is None
        for partition in known[topic].partitions
    }


def _read(message: Message) -> Read:
    headers = dict(message.headers() or ())
    event_id = _uuid(headers.get("ce_id"))
    return Read(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        id=event_id,
        kind=(headers.get("ce_txkind") or b"").decode(),
        key=None if message.key() is None else message.key().decode(errors="replace"),
        seq=_seq(message.value()),
        causation=_uuid(headers.get("ce_causationid")),
    )


def _uuid(value: bytes | None) -> UUID | None:
    try:
        return None if value is None else UUID(value.decode())
    except ValueError:
        return None


def _seq(value: bytes | None) -> int | None:
    try:
        body = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return None
    return body.get("seq") if isinstance(body, dict) else None
