"""librdkafka's producer, by confluent-kafka: an extra, faster than the one in Python.

It is used only for producing. With `enable.gapless.guarantee`, a record that cannot be written ends
the client and fails all later records. So no record of a partition is in the log without all
earlier ones, and batches need no rounds of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from kafka.errors import KafkaError, KafkaTimeoutError, for_code

from shieldtx.brokers.client_options import RECONNECTION_MS, Role, for_librdkafka
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.producer_client import ProduceRound, ProducerSettings
from shieldtx.errors import ConfigurationError
from shieldtx.ports.broker import Backpressure, Record

try:
    import confluent_kafka
except ImportError as error:
    raise ConfigurationError(
        "the Kafka client confluent-kafka is not installed: pip install 'shieldtx[confluent]'"
    ) from error

log = logging.getLogger(__name__)

_METADATA_AGE_S: Final = 60.0
_CLOSE_S: Final = 2.0
# How long to wait for the records of a round before checking whether the client has ended.
_POLL_S: Final = 0.25
_UNUSABLE: Final = {
    confluent_kafka.KafkaError._INVALID_ARG,  # noqa: SLF001  public despite its name
    confluent_kafka.KafkaError._NOT_IMPLEMENTED,  # noqa: SLF001
    confluent_kafka.KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
}
"""An option is unknown, invalid, or not part of this build of librdkafka."""
_FATAL: Final = {
    confluent_kafka.KafkaError._FATAL,  # noqa: SLF001  public despite its name
    confluent_kafka.KafkaError._GAPLESS_GUARANTEE,  # noqa: SLF001
    confluent_kafka.KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001
    confluent_kafka.KafkaError._PURGE_QUEUE,  # noqa: SLF001
}
"""Another record has ended the client, and failed this record, which is not faulty."""


def connect(connection: KafkaConnection, settings: ProducerSettings, *, within: float) -> Confluent:
    """Connect a producer within the given seconds; raises BrokerUnavailable or BrokerError.

    Raises ConfigurationError for options that librdkafka refuses.
    """
    options = _account(connection) | _options(connection, settings)
    with connection.translated("connecting", connects=True):
        client = Confluent(options)
        try:
            client.ask(timeout=within)
        except BaseException:
            # The garbage collector would free its threads and pipes only after minutes.
            client.discard()
            raise
    return client


def require_options(connection: KafkaConnection, settings: ProducerSettings) -> None:
    """Raise ConfigurationError for options that librdkafka refuses, without connecting.

    A relay that found them only when it connects would report an outage of the brokers.
    """
    Confluent(_options(connection, settings)).discard()


def _options(connection: KafkaConnection, settings: ProducerSettings) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "compression.type": settings.compression or "none",
        "batch.size": settings.batch_bytes,
        # The flush at the end of a round overrides the lingering.
        "linger.ms": 50,
        "socket.timeout.ms": int(settings.request_timeout * 1000),
        "request.timeout.ms": int(settings.request_timeout * 1000),
        # Practically unlimited: the deadline of a call ends all its records.
        "delivery.timeout.ms": 3_600_000,
        "message.max.bytes": settings.max_request_bytes,
        "queue.buffering.max.kbytes": 2 * settings.max_request_bytes // 1024,
        "reconnect.backoff.max.ms": RECONNECTION_MS,
        "allow.auto.create.topics": False,
        **for_librdkafka(connection.client_options.of(Role.PRODUCER)),
    }


def _account(connection: KafkaConnection) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap.servers": ",".join(connection.addresses),
        "client.id": connection.client_id,
        "security.protocol": connection.security_protocol,
    }
    if connection.tokens is not None and connection.sasl_mechanism == "OAUTHBEARER":
        options |= {
            "sasl.mechanism": connection.sasl_mechanism,
            "oauth_cb": connection.tokens.for_librdkafka,
        }
    elif connection.security_protocol.startswith("SASL"):
        options |= {
            "sasl.mechanism": connection.sasl_mechanism,
            "sasl.username": connection.sasl_username,
            "sasl.password": connection.sasl_password,
        }
    if connection.ssl_cafile is not None:
        options["ssl.ca.location"] = connection.ssl_cafile
    if connection.ssl_certfile is not None:
        options["ssl.certificate.location"] = connection.ssl_certfile
        options["ssl.key.location"] = connection.ssl_keyfile or connection.ssl_certfile
        if connection.ssl_key_password is not None:
            options["ssl.key.password"] = connection.ssl_key_password
    return options


class _Log:
    """Receives librdkafka's log; the reasons of deliveries contain all relevant errors too."""

    def log(self, _: int, message: str, *args: Any) -> None:
        log.debug(message, *args)


class Confluent:
    """A librdkafka producer (the protocol ProducerClient)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.asked_for: set[str] = set()
        self._throttled_until = 0.0
        self._was_full = False
        self._failure = ""
        callbacks = {"throttle_cb": self._on_throttle, "error_cb": self._on_error}
        try:
            self.producer = confluent_kafka.Producer(options | callbacks, logger=_Log())
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() in _UNUSABLE:
                raise ConfigurationError(
                    "confluent-kafka does not start with these SHIELDTX_KAFKA_... settings: "
                    f"{error.args[0].str().strip()}"
                ) from error
            raise error_of(error.args[0]) from error
        self._partitions: dict[str, tuple[int, float]] = {}

    def ask(self, topic: str | None = None, *, timeout: float) -> Any:
        """Return the metadata of a topic or of the cluster; raises KafkaError."""
        try:
            return self.producer.list_topics(topic, timeout=timeout)
        except confluent_kafka.KafkaException as error:
            self.producer.poll(0)  # runs the callbacks: only they get the cause of the error
            raise error_of(error.args[0], self._failure) from error

    def knows(self, topic: str) -> bool:
        """Whether the cached metadata include this topic."""
        known = self._partitions.get(topic)
        return known is not None and time.monotonic() < known[1]

    def partition_count(self, topic: str, *, within: float) -> int:
        """Return how many partitions a topic has; raises KafkaError for an unknown topic."""
        if not self.knows(topic):
            self.asked_for.add(topic)
            found = self.ask(topic, timeout=within).topics[topic]
            if found.error is not None:
                raise error_of(found.error)
            self._partitions[topic] = (len(found.partitions), time.monotonic() + _METADATA_AGE_S)
        return self._partitions[topic][0]

    def pressure(self) -> Backpressure:
        """Return the pressure on the brokers.

        librdkafka reports a throttled response and continues to send. The broker would delay these
        requests (KIP-219), and they would time out.
        """
        was_full, self._was_full = self._was_full, False
        pause = max(0.0, self._throttled_until - time.monotonic())
        return Backpressure(pause=pause, full=was_full)

    def _on_throttle(self, event: Any) -> None:
        until = time.monotonic() + event.throttle_time
        self._throttled_until = max(self._throttled_until, until)

    def _on_error(self, error: Any) -> None:
        self._failure = str(error.str())

    def _on_full(self) -> None:
        self._was_full = True

    def round(self) -> ProduceRound:
        """Begin a round."""
        return _ProduceRound(self.producer, self._on_full)

    def close(self) -> None:
        """Close the connection after sending the records in flight, within a few seconds."""
        with suppress(confluent_kafka.KafkaException, SystemError):
            self.producer.flush(_CLOSE_S)
        self.discard()

    def discard(self) -> None:
        """Drop all records that are not acknowledged yet."""
        with suppress(confluent_kafka.KafkaException, SystemError):
            self.producer.purge(blocking=False)
            self.producer.flush(0)
        # Closed here, as the garbage collector may not: a fatal error leaks a reference
        # (confluent-kafka 2.16).
        with suppress(confluent_kafka.KafkaException, SystemError):
            self.producer.close()


class _RecordResult:
    """The outcome of one record."""

    __slots__ = ("error", "is_done", "offset")

    def __init__(self) -> None:
        self.is_done = False
        self.error: Any = None
        self.offset = -1

    def note(self, error: Any, message: Any) -> None:
        """Store the outcome; librdkafka calls it."""
        self.error = error
        if error is None:
            self.offset = message.offset()
        self.is_done = True

    @property
    def exception(self) -> BaseException | None:
        """The error; None for an acknowledged record."""
        return None if self.error is None else error_of(self.error)


class _ProduceRound:
    """Passes each record to librdkafka (the protocol ProduceRound)."""

    def __init__(self, producer: Any, on_full: Callable[[], None]) -> None:
        self._producer = producer
        self._on_full = on_full
        self._ends: list[_RecordResult] = []

    def take(self, record: Record, partition: int) -> bool:
        """Pass a record to the client, if there is room in its queue."""
        end = _RecordResult()
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                partition,
                end.note,
                headers=list(record.headers),
            )
        except BufferError:
            if not self._ends:
                raise
            self._on_full()
            return False
        except confluent_kafka.KafkaException as error:
            raise error_of(error.args[0]) from error
        self._ends.append(end)
        return True

    def send(self, deadline: float) -> list[Any]:
        """Send all records, wait for them, and return their results."""
        is_ended = False
        while (left := deadline - time.monotonic()) > 0:
            if is_ended:
                self._producer.purge(in_flight=False, blocking=False)
            try:
                if not self._producer.flush(min(left, _POLL_S)):
                    break
            except (confluent_kafka.KafkaException, SystemError):
                # A fatal error is raised here, for a record's report, and only when the time is
                # over. A record that was passed at that moment stays until the purge.
                is_ended = True
        return self._ends


def error_of(error: Any, reason: str = "") -> KafkaError:
    """Return librdkafka's error as an error of kafka-python."""
    text = f"{error.name()}: {error.str()}" + (f" ({reason})" if reason else "")
    if error.code() in _FATAL:
        return KafkaError(text)
    if error.code() > 0:
        made: KafkaError = for_code(error.code())(text)  # type: ignore[no-untyped-call]
        return made
    return KafkaTimeoutError(text)
