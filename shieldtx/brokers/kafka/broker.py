"""Apache Kafka as a broker of shieldtx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from shieldtx.brokers.client_options import Role
from shieldtx.brokers.cloudevents import MAX_HEADER_BYTES, MAX_KEY_BYTES
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.kafka_python_producer import require_codec
from shieldtx.brokers.kafka.oauth_tokens import TokenSource
from shieldtx.brokers.kafka.producer_client import MESSAGE_MAX_BYTES, ProducerSettings
from shieldtx.brokers.kafka.publisher import KafkaPublisher
from shieldtx.brokers.kafka.settings import (
    GroupOptions,
    KafkaSettings,
    ProducerName,
    connection_of,
    group_options,
)
from shieldtx.brokers.kafka.subscriber import KafkaSubscriber
from shieldtx.brokers.kafka.topic_admin import KafkaTopics

__all__ = ["KafkaBroker", "KafkaConnection", "KafkaPublisher", "KafkaSubscriber", "KafkaTopics"]


class KafkaBroker:
    """A Kafka cluster: creates publishers, subscribers and topic admins for it."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        producer: ProducerName = "kafka-python",
        max_record_bytes: int = MESSAGE_MAX_BYTES,
        group: Callable[[], GroupOptions] = GroupOptions,
    ) -> None:
        """Store the options without connecting; `max_record_bytes` limits published records.

        `group` returns the membership of a subscriber, when one is created.
        """
        self._connection = connection
        self._producer = producer
        self._producing = _producing(connection, max_record_bytes)
        self._group = group

    @classmethod
    def from_settings(
        cls,
        settings: KafkaSettings,
        *,
        token: TokenSource | None = None,
        longest_pass: Callable[[], timedelta] = timedelta,
    ) -> KafkaBroker:
        """Create a broker from the settings; raises ConfigurationError for invalid ones.

        `token` returns the tokens of OAUTHBEARER; `longest_pass` is that of a consumer, whose
        handlers may be declared later.
        """
        return cls(
            connection_of(settings, token),
            producer=settings.kafka_producer,
            # Records that `add` accepts are sent: only brokers and topics may have a lower limit.
            max_record_bytes=max(
                MESSAGE_MAX_BYTES, settings.max_payload_bytes + MAX_KEY_BYTES + MAX_HEADER_BYTES
            ),
            group=lambda: group_options(settings, longest_pass=longest_pass()),
        )

    def publisher(self) -> KafkaPublisher:
        """Return a new publisher; it connects with its first call.

        Raises ConfigurationError when its client is not installed or refuses the options.
        """
        if self._producer == "confluent-kafka":
            from shieldtx.brokers.kafka import confluent_producer  # noqa: PLC0415  an extra

            confluent_producer.require_options(self._connection, self._producing)
            return KafkaPublisher(
                self._connection, self._producing, connect=confluent_producer.connect
            )
        require_codec(self._producing.compression)
        return KafkaPublisher(self._connection, self._producing)

    def subscriber(self, group: str, topics: Sequence[str]) -> KafkaSubscriber:
        """Return a new member of a consumer group; it connects with its first poll.

        Raises ConfigurationError where handlers take longer than the poll interval.
        """
        options = self._group()
        return KafkaSubscriber(
            self._connection,
            group=group,
            topics=topics,
            session_timeout=options.session_timeout,
            heartbeat_interval=options.heartbeat_interval,
            max_poll_interval=options.max_poll_interval,
            instance_id=options.instance_id,
            replaces_dead=options.replaces_dead,
        )

    def topics(self) -> KafkaTopics:
        """Return an admin of the topics; it connects with its first call."""
        return KafkaTopics(self._connection)


def _producing(connection: KafkaConnection, max_record_bytes: int) -> ProducerSettings:
    """Return the settings of producing, with the options that any producer understands."""
    settings = ProducerSettings(max_record_bytes=max_record_bytes)
    options = connection.client_options.of(Role.PRODUCER)
    compression = options.get("compression.type", "none")
    return replace(
        settings,
        batch_bytes=options.get("batch.size", settings.batch_bytes),
        compression=None if compression == "none" else compression,
        request_timeout=options.get("request.timeout.ms", settings.request_timeout * 1000) / 1000,
    )
