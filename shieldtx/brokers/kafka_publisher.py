"""Publishing to Kafka, with one clear answer for each record."""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kafka import KafkaProducer
from kafka.errors import (
    AuthorizationError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)

from shieldtx.brokers.kafka_admin import KafkaTopics
from shieldtx.brokers.kafka_connection import KafkaConnection
from shieldtx.brokers.partitioning import Spread, partition_of
from shieldtx.errors import BrokerError
from shieldtx.ports import Delivery, Outcome, Record

log = logging.getLogger(__name__)

MESSAGE_MAX_BYTES: Final = 1_048_588
"""Kafka's default for `message.max.bytes`."""

# Errors about a record, or about a batch because of one of its records.
_REJECTIONS: Final = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    PolicyViolationError,
)
# Errors that somebody may mend without touching the record.
_REFUSALS: Final = (AuthorizationError, InvalidTopicError, UnsupportedForMessageFormatError)

# What a batch has in front of its records, and a record around its key, value and headers at most:
# lengths, time, offset and attributes in Kafka's record format 2.
_BATCH_OVERHEAD: Final = 61
_RECORD_OVERHEAD: Final = 36
_HEADER_OVERHEAD: Final = 10

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 2.0
# How long to wait for one partition before looking at the clock again.
_LOOK_S: Final = 0.25
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_ACKNOWLEDGED: Final = Delivery(outcome=Outcome.ACKNOWLEDGED)


class KafkaPublisher:
    """Publishes to Kafka with acks=all and an idempotent producer.

    Records of a call are handed over in rounds, at most one batch for a partition in each, so that
    no record is in the log while an earlier one of its partition is not. The client would go on
    with the next batch after a failed one, and after its own delivery timeout too: that timeout is
    out of the way, the deadline of the call ends it all.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        batch_bytes: int = 262_144,
        max_record_bytes: int = MESSAGE_MAX_BYTES,
        compression: str | None = None,
        request_timeout: float = 5.0,
    ) -> None:
        """Connect to nothing yet.

        A record whose parts are above `max_record_bytes` is rejected; brokers and topics may have a
        lower limit (`message.max.bytes`, `max.message.bytes`), which is obeyed too. A request that
        is not answered within `request_timeout` seconds is repeated on a new connection.
        """
        self._connection = connection
        self._max_record_bytes = max_record_bytes
        self._batch_bytes = batch_bytes
        self._options = {
            "acks": "all",
            # Named, or a conflicting option would silently turn it off.
            "enable_idempotence": True,
            "compression_type": compression,
            "batch_size": batch_bytes,
            # flush() ends each round; until then a batch is not to be sent half full.
            "linger_ms": 1_000,
            "request_timeout_ms": int(request_timeout * 1000),
            "delivery_timeout_ms": 3_600_000,
            "max_block_ms": 1_000,
            "max_request_size": max(4 * MESSAGE_MAX_BYTES, 2 * max_record_bytes),
            "metrics_enabled": False,
        }
        self._producer: _Producer | None = None
        self._spreads: dict[str, Spread] = defaultdict(lambda: Spread(batch_bytes // 2))

    def publish(self, records: Sequence[Record], *, timeout: float) -> Sequence[Delivery]:
        """Send `records` and answer for each, as the port says."""
        call = _Call(records, deadline=time.monotonic() + timeout)
        self._reject_impossible(call)
        try:
            self._assign_partitions(call)
            self._deliver(call, call.open())
        except BrokerError as error:
            call.stop(str(error))
        except Exception as error:  # whatever a client raises is no clear answer
            log.exception("publishing failed")
            call.stop(f"the Kafka client failed: {error!r}")
        if call.stopped:
            self._discard()
        return call.deliveries()

    def close(self) -> None:
        """Let go of the broker."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.close(timeout=_CLOSE_S)
        except KafkaError:
            producer.abandon()

    def _reject_impossible(self, call: _Call) -> None:
        for index, record in enumerate(call.records):
            size = call.sizes[index] = _content_bytes(record)
            if size > self._max_record_bytes:
                reason = f"{size} bytes, the limit is {self._max_record_bytes}"
                call.reject(index, reason)
            elif not _TOPIC_NAME.fullmatch(record.topic):
                call.reject(index, f"{record.topic!r} cannot be the name of a topic")

    def _assign_partitions(self, call: _Call) -> None:
        """Refuse the records of topics that do not exist, before any is sent, and place the others."""
        topics = dict.fromkeys(call.records[index].topic for index in call.open())
        counts = self._partition_counts(topics, call)
        for index in call.open():
            record = call.records[index]
            count = counts[record.topic]
            if isinstance(count, Delivery):
                call.ended[index] = count
            elif record.key is not None:
                call.partitions[index] = partition_of(record.key, count)
            else:
                size = call.sizes[index]
                call.partitions[index] = self._spreads[record.topic].next_partition(size, count)

    def _partition_counts(self, topics: Iterable[str], call: _Call) -> dict[str, int | Delivery]:
        """Return how many partitions each topic has, or why nothing can be sent to it."""
        producer = self._open(call)
        counts: dict[str, int | Delivery] = {}
        for topic in topics:
            if not producer.knows(topic):
                refusal = self._refusal(topic, call)
                if refusal is not None:
                    counts[topic] = refusal
                    continue
            with self._connection.translated(f"asking for the partitions of {topic}"):
                counts[topic] = len(producer.partitions_for(topic))
        return counts

    def _refusal(self, topic: str, call: _Call) -> Delivery | None:
        """Ask the cluster whether nothing can be sent to a topic, and why.

        The producer is not asked: for a topic that does not exist it would wait, and ask the broker
        ten times a second from then on.
        """
        admin = KafkaTopics(self._connection, timeout=min(_CONNECT_S, call.left()))
        try:
            for _ in range(2):  # the broker may not have heard yet of a topic just made
                if admin.describe([topic])[topic] is not None:
                    return None
            reason = f"topic {topic} does not exist; create it with `shieldtx topics create`"
        except BrokerError as error:
            if not isinstance(error.__cause__, AuthorizationError):
                raise
            reason = str(error)
        finally:
            admin.close()
        return Delivery(outcome=Outcome.REFUSED, reason=reason)

    def _deliver(self, call: _Call, indexes: Sequence[int]) -> None:
        """Hand records over, round by round, and find out whom a failed batch is to blame on."""
        indexes = [index for index in indexes if not call.held_back(index)]
        while indexes and not call.stopped:
            now, indexes = self._next_round(call, indexes)
            condemned = self._send(call, now)
            if condemned:
                self._resolve(call, now, condemned)
            indexes = [index for index in indexes if not call.held_back(index)]

    def _next_round(self, call: _Call, indexes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Divide records into those that fill at most one batch a partition, and those after them."""
        room: dict[tuple[str, int], int] = defaultdict(lambda: self._batch_bytes - _BATCH_OVERHEAD)
        for position, index in enumerate(indexes):
            record = call.records[index]
            place = (record.topic, call.partitions[index])
            first = place not in room
            room[place] -= (
                call.sizes[index] + _RECORD_OVERHEAD + _HEADER_OVERHEAD * len(record.headers)
            )
            if room[place] < 0 and not first:
                return list(indexes[:position]), list(indexes[position:])
        return list(indexes), []

    def _send(self, call: _Call, indexes: Sequence[int]) -> dict[int, KafkaError]:
        """Hand over a round, wait for its end, and settle what has a clear one.

        Returns the records that the client failed with an error that may be due to another record.
        """
        producer = self._open(call)
        futures: list[Any] = []
        for index in indexes:
            record = call.records[index]
            try:
                future = producer.send(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=call.partitions[index],
                )
            except (KafkaError, ValueError) as error:
                # It knew the topic a moment ago: metadata changed, and no later record may go.
                call.stop(f"the Kafka client did not take the record: {error}")
                break
            call.handed_over.add(index)
            futures.append(future)
        producer.settle(futures, call.deadline)
        return call.settle(indexes, futures)

    def _resolve(
        self, call: _Call, sent: Sequence[int], condemned: dict[int, KafkaError]
    ) -> None:
        """Tell culprits from innocents by sending them again, apart.

        The first error of this kind is fatal for the client, which then fails everything it holds
        with it: records of other batches, and of other topics.
        """
        self._discard()
        indexes = sorted(condemned)
        topics = dict.fromkeys(call.records[index].topic for index in indexes)
        error = condemned[indexes[0]]
        if len(sent) == 1 and isinstance(error, _REJECTIONS):
            call.reject(sent[0], str(error))
        elif isinstance(error, _REFUSALS) and len({call.records[i].topic for i in sent}) == 1:
            for index in indexes:
                call.ended[index] = Delivery(outcome=Outcome.REFUSED, reason=str(error))
        elif isinstance(error, _REFUSALS):
            for topic in topics:
                self._deliver(call, [i for i in indexes if call.records[i].topic == topic])
        elif len(sent) == 1:
            call.stop(f"the Kafka client failed the record: {error}")
        else:
            middle = (len(indexes) + 1) // 2
            self._deliver(call, indexes[:middle])
            self._deliver(call, indexes[middle:])

    def _open(self, call: _Call) -> _Producer:
        if self._producer is None:
            self._producer, network = self._connection.open(
                _Producer, within=min(_CONNECT_S, call.left()), **self._options
            )
            self._producer.network = network
        return self._producer

    def _discard(self) -> None:
        """Drop the client, whose state nobody can trust any more, without waiting for it."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.abandon()
