"""Apache Kafka as shieldtx's broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from pydantic import SecretStr

from shieldtx.brokers.cloudevents import MAX_HEADER_BYTES, MAX_KEY_BYTES
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.producer_client import MESSAGE_MAX_BYTES, ProducerSettings
from shieldtx.brokers.kafka.publisher import KafkaPublisher
from shieldtx.brokers.kafka.subscriber import KafkaSubscriber
from shieldtx.brokers.kafka.topic_admin import KafkaTopics

__all__ = ["KafkaBroker", "KafkaConnection", "KafkaPublisher", "KafkaSubscriber", "KafkaTopics"]


ProducerName: TypeAlias = Literal["kafka-python", "confluent-kafka"]


class KafkaSettings(Protocol):
    """Where the cluster is, as the application's settings say it."""

    @property
    def source(self) -> str:
        """The name of the service, by which the brokers tell their clients apart."""
        ...

    @property
    def kafka_bootstrap(self) -> str:
        """`host:port`, or several of them separated by commas."""
        ...

    @property
    def kafka_security_protocol(self) -> str:
        """One of Kafka's four."""
        ...

    @property
    def kafka_sasl_mechanism(self) -> str | None:
        """PLAIN or one of the SCRAMs."""
        ...

    @property
    def kafka_sasl_username(self) -> str | None:
        """The account."""
        ...

    @property
    def kafka_sasl_password(self) -> SecretStr | None:
        """Its password."""
        ...

    @property
    def kafka_ssl_cafile(self) -> str | None:
        """Certificates to trust."""
        ...

    @property
    def kafka_producer(self) -> ProducerName:
        """Which client the relay sends with."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """Of the largest payload that the service writes."""
        ...


class KafkaBroker:
    """A Kafka cluster: makes publishers, subscribers and topic admins for it."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        producer: ProducerName = "kafka-python",
        max_record_bytes: int = MESSAGE_MAX_BYTES,
    ) -> None:
        """Connect to nothing yet; the publisher rejects records above `max_record_bytes`."""
        self._connection = connection
        self._producer = producer
        self._producing = ProducerSettings(max_record_bytes=max_record_bytes)

    @classmethod
    def from_settings(cls, settings: KafkaSettings) -> KafkaBroker:
        """Make it from the settings; raises ConfigurationError for what cannot work."""
        password = settings.kafka_sasl_password
        return cls(
            KafkaConnection(
                bootstrap_servers=settings.kafka_bootstrap,
                client_id=f"shieldtx-{settings.source}",
                security_protocol=settings.kafka_security_protocol,
                sasl_mechanism=settings.kafka_sasl_mechanism,
                sasl_username=settings.kafka_sasl_username,
                sasl_password=None if password is None else password.get_secret_value(),
                ssl_cafile=settings.kafka_ssl_cafile,
            ),
            producer=settings.kafka_producer,
            # What `add` accepts is sent: the brokers and the topics alone may take less.
            max_record_bytes=max(
                MESSAGE_MAX_BYTES, settings.max_payload_bytes + MAX_KEY_BYTES + MAX_HEADER_BYTES
            ),
        )

    def publisher(self) -> KafkaPublisher:
        """Return a new publisher; it connects when it first publishes.

        Raises ConfigurationError when its client is not installed.
        """
        if self._producer == "confluent-kafka":
            from shieldtx.brokers.kafka import confluent_producer  # noqa: PLC0415  an extra

            return KafkaPublisher(
                self._connection, self._producing, connect=confluent_producer.connect
            )
        return KafkaPublisher(self._connection, self._producing)

    def subscriber(self, group: str, topics: Sequence[str]) -> KafkaSubscriber:
        """Return a new member of a consumer group; it connects when it first polls."""
        return KafkaSubscriber(self._connection, group=group, topics=topics)

    def topics(self) -> KafkaTopics:
        """Return an admin of the topics; it connects when it is first asked."""
        return KafkaTopics(self._connection)
