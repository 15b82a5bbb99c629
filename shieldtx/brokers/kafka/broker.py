"""Apache Kafka as a broker of shieldtx."""

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
    """Address and account of the cluster, as the application's settings contain them."""

    @property
    def source(self) -> str:
        """The name of the service, by which the brokers distinguish their clients."""
        ...

    @property
    def kafka_bootstrap(self) -> str:
        """`host:port`, or several addresses separated by commas."""
        ...

    @property
    def kafka_security_protocol(self) -> str:
        """One of Kafka's four security protocols."""
        ...

    @property
    def kafka_sasl_mechanism(self) -> str | None:
        """PLAIN or one of the SCRAM mechanisms."""
        ...

    @property
    def kafka_sasl_username(self) -> str | None:
        """The SASL user name."""
        ...

    @property
    def kafka_sasl_password(self) -> SecretStr | None:
        """The SASL password."""
        ...

    @property
    def kafka_ssl_cafile(self) -> str | None:
        """File of trusted CA certificates."""
        ...

    @property
    def kafka_producer(self) -> ProducerName:
        """Name of the client with which the relay publishes."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """Maximum bytes of a payload that the service writes."""
        ...


class KafkaBroker:
    """A Kafka cluster: creates publishers, subscribers and topic admins for it."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        producer: ProducerName = "kafka-python",
        max_record_bytes: int = MESSAGE_MAX_BYTES,
    ) -> None:
        """Store the options without connecting; `max_record_bytes` limits published records."""
        self._connection = connection
        self._producer = producer
        self._producing = ProducerSettings(max_record_bytes=max_record_bytes)

    @classmethod
    def from_settings(cls, settings: KafkaSettings) -> KafkaBroker:
        """Create a broker from the settings; raises ConfigurationError for invalid ones."""
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
            # Records that `add` accepts are sent: only brokers and topics may have a lower limit.
            max_record_bytes=max(
                MESSAGE_MAX_BYTES, settings.max_payload_bytes + MAX_KEY_BYTES + MAX_HEADER_BYTES
            ),
        )

    def publisher(self) -> KafkaPublisher:
        """Return a new publisher; it connects with its first call.

        Raises ConfigurationError when its client is not installed.
        """
        if self._producer == "confluent-kafka":
            from shieldtx.brokers.kafka import confluent_producer  # noqa: PLC0415  an extra

            return KafkaPublisher(
                self._connection, self._producing, connect=confluent_producer.connect
            )
        return KafkaPublisher(self._connection, self._producing)

    def subscriber(self, group: str, topics: Sequence[str]) -> KafkaSubscriber:
        """Return a new member of a consumer group; it connects with its first poll."""
        return KafkaSubscriber(self._connection, group=group, topics=topics)

    def topics(self) -> KafkaTopics:
        """Return an admin of the topics; it connects with its first call."""
        return KafkaTopics(self._connection)
