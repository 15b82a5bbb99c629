"""The settings of Kafka's clients, and the connection that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from pydantic import SecretStr

from shieldtx.brokers.client_options import ClientOptions
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.oauth_tokens import Tokens, TokenSource, client_credentials
from shieldtx.errors import ConfigurationError

ProducerName: TypeAlias = Literal["kafka-python", "confluent-kafka"]

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class KafkaSettings(Protocol):
    """Cluster, account and clients, as the application's settings describe them."""

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
    def kafka_ssl_certfile(self) -> str | None:
        """File of the client's certificate."""
        ...

    @property
    def kafka_ssl_keyfile(self) -> str | None:
        """File of its private key."""
        ...

    @property
    def kafka_ssl_key_password(self) -> SecretStr | None:
        """The password of the key."""
        ...

    @property
    def kafka_options(self) -> Mapping[str, Any]:
        """Options of all clients, by the names of Kafka's documentation."""
        ...

    @property
    def kafka_producer(self) -> ProducerName:
        """Name of the client with which the relay publishes."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """Maximum bytes of a payload that the service writes."""
        ...

    @property
    def kafka_oauth_url(self) -> str | None:
        """Address of the provider of tokens."""
        ...

    @property
    def kafka_oauth_client_id(self) -> str | None:
        """Id of the client at the provider."""
        ...

    @property
    def kafka_oauth_client_secret(self) -> SecretStr | None:
        """Secret of the client at the provider."""
        ...

    @property
    def kafka_oauth_scope(self) -> str | None:
        """Scope of the tokens."""
        ...

    @property
    def kafka_producer_options(self) -> Mapping[str, Any]:
        """Options of producers."""
        ...

    @property
    def kafka_consumer_options(self) -> Mapping[str, Any]:
        """Options of consumers."""
        ...

    @property
    def kafka_admin_options(self) -> Mapping[str, Any]:
        """Options of admin clients."""
        ...

    @property
    def consumer_session_timeout(self) -> timedelta:
        """The time without heartbeats that ends a membership."""
        ...

    @property
    def consumer_heartbeat_interval(self) -> timedelta:
        """The interval of heartbeats."""
        ...

    @property
    def consumer_max_poll_interval(self) -> timedelta | None:
        """The longest time between two polls."""
        ...

    @property
    def consumer_instance_id(self) -> str | None:
        """The name of a static member."""
        ...

    @property
    def early_takeover(self) -> bool:
        """Whether dead members of this host are removed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions:
    """The membership of consumers in their groups; times in seconds."""

    session_timeout: float = 15.0
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    instance_id: str | None = None
    replaces_dead: bool = True


def group_options(settings: KafkaSettings, *, longest_pass: timedelta) -> GroupOptions:
    """Return the membership of consumers whose passes take up to `longest_pass`.

    Raises ConfigurationError for a poll interval that a pass may exceed: the member would lose its
    partitions in the middle of the pass.
    """
    interval = settings.consumer_max_poll_interval
    if interval is None:
        interval = max(timedelta(minutes=5), longest_pass + timedelta(minutes=2))
    elif interval <= longest_pass:
        raise ConfigurationError(
            f"SHIELDTX_CONSUMER_MAX_POLL_INTERVAL ({interval}) must be above the longest pass of a "
            f"consumer ({longest_pass}: a minute, and the longest lease of its handlers): raise or "
            "unset it, or shorten the leases"
        )
    return GroupOptions(
        session_timeout=settings.consumer_session_timeout.total_seconds(),
        heartbeat_interval=settings.consumer_heartbeat_interval.total_seconds(),
        max_poll_interval=interval.total_seconds(),
        instance_id=settings.consumer_instance_id,
        replaces_dead=settings.early_takeover,
    )


def connection_of(settings: KafkaSettings, token: TokenSource | None = None) -> KafkaConnection:
    """Return the connection of the settings, with the application's source of tokens.

    Raises ConfigurationError for invalid settings.
    """
    s = settings
    options = ClientOptions(
        common=s.kafka_options,
        producer=s.kafka_producer_options,
        consumer=s.kafka_consumer_options,
        admin=s.kafka_admin_options,
    )
    return KafkaConnection(
        bootstrap_servers=s.kafka_bootstrap,
        client_id=options.client_id or f"shieldtx-{s.source}",
        security_protocol=s.kafka_security_protocol,
        sasl_mechanism=s.kafka_sasl_mechanism,
        sasl_username=s.kafka_sasl_username,
        sasl_password=_text(s.kafka_sasl_password),
        ssl_cafile=s.kafka_ssl_cafile,
        ssl_certfile=s.kafka_ssl_certfile,
        ssl_keyfile=s.kafka_ssl_keyfile,
        ssl_key_password=_text(s.kafka_ssl_key_password),
        tokens=_tokens(s, token),
        client_options=options,
    )


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _tokens(s: KafkaSettings, token: TokenSource | None) -> Tokens | None:
    secret = _text(s.kafka_oauth_client_secret)
    if s.kafka_oauth_url is None:
        if s.kafka_oauth_client_id is not None or secret is not None:
            raise ConfigurationError(
                "SHIELDTX_KAFKA_OAUTH_CLIENT_ID or its secret is set, but SHIELDTX_KAFKA_OAUTH_URL "
                "is not"
            )
        return None if token is None else Tokens(token)
    if token is not None:
        raise ConfigurationError(
            "SHIELDTX_KAFKA_OAUTH_URL is set, and ShieldTx(kafka_token=...) is given: use one"
        )
    if s.kafka_oauth_client_id is None or not secret:
        raise ConfigurationError(
            "SHIELDTX_KAFKA_OAUTH_URL needs SHIELDTX_KAFKA_OAUTH_CLIENT_ID and "
            "SHIELDTX_KAFKA_OAUTH_CLIENT_SECRET"
        )
    address = urlsplit(s.kafka_oauth_url)
    if address.scheme != "https" and not (
        address.scheme == "http" and address.hostname in _LOOPBACK
    ):
        raise ConfigurationError(
            "SHIELDTX_KAFKA_OAUTH_URL must begin with https://, since the secret is sent there"
        )
    return Tokens(
        client_credentials(
            url=s.kafka_oauth_url,
            client_id=s.kafka_oauth_client_id,
            client_secret=secret,
            scope=s.kafka_oauth_scope,
        )
    )
