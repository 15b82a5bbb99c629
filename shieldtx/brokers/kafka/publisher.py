"""Publishing to Kafka, with one unambiguous outcome for each record."""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from kafka.errors import KafkaError

from shieldtx.brokers.cloudevents import MAX_HEADER_BYTES
from shieldtx.brokers.kafka import kafka_python_producer
from shieldtx.brokers.kafka.client_logging import sending_errors
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.producer_client import Connect, ProducerClient, ProducerSettings
from shieldtx.brokers.kafka.publish_request import REFUSALS, REJECTIONS, PublishRequest, text_of
from shieldtx.brokers.kafka.topic_admin import KafkaTopics
from shieldtx.brokers.partitioning import Spread, partition_of
from shieldtx.errors import BrokerError, ConfigurationError
from shieldtx.ports.broker import Backpressure, Delivery, Record

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 5.0
"""How long a call waits for a connection, or for the metadata of a topic, at the most."""
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class KafkaPublisher:
    """Publishes to Kafka with acks=all and an idempotent producer.

    Records of a call are passed to the client in rounds, at most one batch per partition in each.
    So no record is in the log while an earlier record of its partition is not. The client itself
    would continue with the next batch after a batch failed or reached the client's delivery
    timeout. So that timeout is practically unlimited, and the deadline of the call ends all
    records.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        settings: ProducerSettings | None = None,
        *,
        connect: Connect = kafka_python_producer.connect,
    ) -> None:
        """Store the options without connecting; `connect` selects the client.

        A record whose parts are above the settings' `max_record_bytes` is rejected. Brokers and
        topics may have a lower limit (`message.max.bytes`, `max.message.bytes`), which also
        applies.
        """
        self._connection = connection
        self._settings = settings or ProducerSettings()
        self._connect = connect
        self._client: ProducerClient | None = None
        self._throttled_until = 0.0
        self._was_full = False
        stretch = self._settings.batch_bytes // 2
        self._spreads: dict[str, Spread] = defaultdict(lambda: Spread(stretch))

    def publish(
        self, records: Sequence[Record], *, timeout: float, with_offsets: bool = False
    ) -> Sequence[Delivery]:
        """Send `records` and return the outcome of each, as the port defines.

        A record after a rejected record of its key is not sent: it may be sent when that rejection
        is committed.
        """
        call = PublishRequest(records, timeout, with_offsets=with_offsets)
        self._was_full = False
        try:
            self._reject_impossible(call)
            self._assign_partitions(call)
            with sending_errors() as answers:
                self._deliver(call, call.open())
            if call.stopped and answers:
                call.stopped += f"; the broker's answer was {answers[-1]}"
        except (BrokerError, ConfigurationError) as error:
            # A setting that fits at the start may no longer fit, such as the path of a certificate.
            call.stop(str(error))
        except Exception as error:  # any other error of a client leaves the outcome ambiguous
            log.exception("Kafka client failed", extra={"action": "kafka_client_failed"})
            call.stop(f"the Kafka client failed: {error!r}")
        if call.stopped:
            self._discard()
        return call.deliveries()

    def pressure(self) -> Backpressure:
        """Return the pressure of the last call on the brokers."""
        pause = max(0.0, self._throttled_until - time.monotonic())
        return Backpressure(pause=pause, full=self._was_full)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _reject_impossible(self, call: PublishRequest) -> None:
        limit = self._settings.max_record_bytes
        for index, record in enumerate(call.records):
            size = len(record.value) + len(record.key or b"")
            call.sizes.append(size)
            # Headers are counted only near the limit: an event's headers have at most
            # MAX_HEADER_BYTES.
            if size > limit - MAX_HEADER_BYTES and (size := _content_bytes(record)) > limit:
                call.reject(index, f"{size} bytes, the limit is {limit}")
            elif not _can_name_a_topic(record.topic):
                call.reject(index, f"no topic can have the name {record.topic!r}")

    def _assign_partitions(self, call: PublishRequest) -> None:
        """Refuse the records of missing topics before any is sent; assign partitions to others."""
        waiting = call.open()
        topics = dict.fromkeys(call.records[index].topic for index in waiting)
        counts = {topic: self._partition_count(topic, call) for topic in topics}
        for index in waiting:
            record = call.records[index]
            count = counts[record.topic]
            if count is None:
                continue
            if record.key is not None:
                call.partitions[index] = partition_of(record.key, count)
            else:
                size = call.sizes[index]
                call.partitions[index] = self._spreads[record.topic].next_partition(size, count)

    def _partition_count(self, topic: str, call: PublishRequest) -> int | None:
        """Return the number of a topic's partitions; None, its records refused, if it has none."""
        client = self._open(call)
        if not client.knows(topic) and (reason := self._refusal(topic, call)):
            call.refuse(topic, reason)
            if topic in client.asked_for:
                self._discard()
            return None
        with self._connection.translated(f"asking for the partitions of {topic}"):
            return client.partition_count(topic, within=_patience(call.left()))

    def _refusal(self, topic: str, call: PublishRequest) -> str:
        """Return why nothing can be sent to a topic, from the cluster; "" if it can.

        The producer itself would wait for a missing topic, and repeat its request for it.
        """
        # The admin connects and sends two requests, each with this timeout.
        admin = KafkaTopics(self._connection, timeout=_patience(call.left() / 3))
        try:
            if not admin.missing([topic]):
                return ""
        except BrokerError as error:
            if isinstance(error.__cause__, REFUSALS):
                return str(error)
            raise
        finally:
            admin.close()
        return f"topic {topic} does not exist; create it with `shieldtx topics create`"

    def _deliver(self, call: PublishRequest, indexes: Sequence[int]) -> None:
        """Send records in rounds, and find the failing record of a failed batch."""
        while waiting := call.still_open(indexes):
            sent, condemned = self._send_round(call, waiting)
            if pause := self._note_pressure().pause:
                call.defer_rest(f"deferred: the broker asks for a pause of {pause:.3g} s")
            if condemned:
                # Fatal for the client, which fails all its records with the same error: also other
                # batches and topics.
                self._discard()
                self._resolve(call, sent, condemned)

    def _send_round(
        self, call: PublishRequest, indexes: Sequence[int]
    ) -> tuple[Sequence[int], dict[int, KafkaError]]:
        """Send as many records as fit, wait for them, and settle those with a clear outcome.

        Returns the sent records, and those with an error that may concern another record.
        """
        round_ = self._open(call).round()
        sent = list(indexes)
        for position, index in enumerate(indexes):
            try:
                if round_.take(call.records[index], call.partitions[index]):
                    continue
            except (KafkaError, ValueError) as error:
                # A batch of this round has ended the client already: its records have the reason.
                is_ended = type(error) is KafkaError and position > 0
                if not is_ended:
                    # The topic existed a moment ago; no later record may be sent without this one.
                    call.stop(f"the Kafka client did not take the record: {error}")
            del sent[position:]
            break
        call.handed_over.update(sent)
        return sent, call.settle(sent, round_.send(call.deadline))

    def _note_pressure(self) -> Backpressure:
        """Store the client's current pressure: the client may be discarded with its call."""
        pressure = Backpressure() if self._client is None else self._client.pressure()
        if pressure.pause:
            self._throttled_until = max(self._throttled_until, time.monotonic() + pressure.pause)
        self._was_full = self._was_full or pressure.full
        return pressure

    def _resolve(
        self, call: PublishRequest, sent: Sequence[int], condemned: dict[int, KafkaError]
    ) -> None:
        """Find the failing records: send the batch again, in order, in ever smaller parts."""
        indexes = sorted(condemned)
        error = condemned[indexes[0]]
        if isinstance(error, REFUSALS):
            topics = list(dict.fromkeys(call.records[index].topic for index in sent))
            if len(topics) == 1:
                call.refuse(topics[0], text_of(error))
            for topic in topics:
                self._deliver(call, [i for i in indexes if call.records[i].topic == topic])
        elif len(sent) > 1:
            middle = (len(indexes) + 1) // 2
            self._deliver(call, indexes[:middle])
            self._deliver(call, indexes[middle:])
        elif isinstance(error, REJECTIONS):
            call.reject(sent[0], text_of(error))
        else:
            call.stop(f"the Kafka client failed the record: {error}")

    def _open(self, call: PublishRequest) -> ProducerClient:
        if self._client is None:
            within = _patience(call.left())
            self._client = self._connect(self._connection, self._settings, within=within)
        return self._client

    def _discard(self) -> None:
        """Drop the client, whose state is unknown, without waiting for it."""
        client, self._client = self._client, None
        if client is not None:
            client.discard()


def _patience(left: float) -> float:
    """Return how long to wait for a response, of the seconds that are left for it."""
    return max(0.1, min(_PATIENCE_S, left))


def _content_bytes(record: Record) -> int:
    """Return the bytes of a record's parts: less than its size in the log."""
    size = len(record.value) + len(record.key or b"")
    for name, value in record.headers:
        size += len(name) + len(value)
    return size


@lru_cache(maxsize=4096)
def _can_name_a_topic(topic: str) -> bool:
    return _TOPIC_NAME.fullmatch(topic) is not None
