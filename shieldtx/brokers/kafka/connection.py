"""Connections to a Kafka cluster, and the meaning of its client's errors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from kafka.errors import (
    BrokerNotAvailableError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    RetriableError,
)

from shieldtx.brokers.client_options import (
    RECONNECTION_MS,
    ClientOptions,
    Role,
    for_kafka_python,
)
from shieldtx.brokers.kafka.client_certificate import problem_of
from shieldtx.brokers.kafka.client_logging import connection_errors, hide
from shieldtx.brokers.kafka.connection_hints import (
    NONE_LEFT,
    hint_of_descriptors,
    hint_of_protocol,
)
from shieldtx.brokers.kafka.network_patches import Network
from shieldtx.brokers.kafka.oauth_tokens import Tokens
from shieldtx.brokers.kafka.private_parts import require_parts
from shieldtx.errors import BrokerError, BrokerUnavailable, ConfigurationError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_OF_SASL: Final = ("sasl_mechanism", "sasl_username", "sasl_password")
_OF_TLS: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
_HIGHEST_PORT: Final = 65_535
_NOT_IN_HOST: Final = frozenset("/@ ")
"""Characters of a URL: of its scheme, and of its account, which must not be shown."""
_TIMEOUTS: Final = (KafkaTimeoutError, RequestTimedOutError)

C = TypeVar("C")


class _Secret(str):
    """A password that is hidden in the repr of the client's settings, which the client logs."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'********'"


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaConnection:
    """A Kafka cluster and the account to use there.

    Raises ConfigurationError for invalid settings.
    """

    bootstrap_servers: str
    """`host:port`, or several addresses separated by commas."""
    client_id: str = "shieldtx"
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None
    """File of trusted certificates; the system's by default."""
    ssl_certfile: str | None = None
    """File of the client's certificate, with its chain."""
    ssl_keyfile: str | None = None
    """File of its private key; by default the file of the certificate."""
    ssl_key_password: str | None = field(default=None, repr=False)
    tokens: Tokens | None = field(default=None, repr=False)
    """The tokens of OAUTHBEARER."""
    client_options: ClientOptions = field(default_factory=ClientOptions)
    in_file: bool = False
    """Whether the settings are those of reconcile.toml, and not of the environment."""

    def __post_init__(self) -> None:
        """Refuse settings with which the client would fail only while it connects."""
        protocol, named = self.security_protocol, self._named
        if protocol not in PROTOCOLS:
            raise ConfigurationError(
                f"{named('security_protocol')}: {protocol!r} is not one of {', '.join(PROTOCOLS)}"
            )
        if protocol.startswith("SASL"):
            self._check_account()
        elif unused := [name for name in _OF_SASL if getattr(self, name) is not None]:
            raise ConfigurationError(
                f"{named(unused[0])} is set, but {protocol} uses no account: set "
                f"{named('security_protocol')} to SASL_SSL or SASL_PLAINTEXT, or unset "
                f"{named(unused[0])}"
            )
        for name in _OF_TLS:
            if (file := getattr(self, name)) is not None:
                self._check_file(name, file)
        self._check_key()
        for place, address in enumerate(self.addresses, 1):
            if not _is_address(address):
                # The address is not shown: it may contain a password.
                raise ConfigurationError(
                    f"{named('bootstrap')}: address {place} is not host:port; write host:port or "
                    "host:port,host:port, without a scheme or an account"
                )

    def _check_account(self) -> None:
        protocol, named = self.security_protocol, self._named
        if self.sasl_mechanism not in SASL_MECHANISMS:
            given = f"{self.sasl_mechanism!r} is not" if self.sasl_mechanism else "not set; use"
            raise ConfigurationError(
                f"{named('sasl_mechanism')}: {given} one of {', '.join(SASL_MECHANISMS)}, which "
                f"{protocol} needs"
            )
        if self.sasl_mechanism == "OAUTHBEARER":
            if self.tokens is None:
                raise ConfigurationError(
                    f"{named('sasl_mechanism')} is OAUTHBEARER, and nothing returns tokens: set "
                    "SHIELDTX_KAFKA_OAUTH_URL, _CLIENT_ID and _CLIENT_SECRET, or pass "
                    "ShieldTx(..., kafka_token=...)"
                )
            return
        for name in ("sasl_username", "sasl_password"):
            if not getattr(self, name):
                raise ConfigurationError(f"{named(name)} is not set: {protocol} needs an account")

    def _check_file(self, name: str, file: str) -> None:
        protocol, named = self.security_protocol, self._named
        if not protocol.endswith("SSL"):
            raise ConfigurationError(
                f"{named(name)} is set, but {protocol} uses no certificates: set "
                f"{named('security_protocol')} to SSL or SASL_SSL, or unset {named(name)}"
            )
        if not Path(file).is_file():
            raise ConfigurationError(f"{named(name)}: there is no file {file!r}")

    def _check_key(self) -> None:
        """Refuse a certificate without its key, and a key without its certificate."""
        named, file = self._named, self.ssl_certfile
        if file is not None:
            if problem := problem_of(file, self.ssl_keyfile, self.ssl_key_password):
                raise ConfigurationError(f"{named('ssl_certfile')}: {problem}")
        elif self.ssl_keyfile is not None or self.ssl_key_password is not None:
            raise ConfigurationError(
                f"{named('ssl_keyfile')} or its password is set, but {named('ssl_certfile')} is not"
            )

    def _named(self, setting: str) -> str:
        """Return the name of a setting, in the environment or in the file of a reconciliation."""
        return f"topics.{setting}" if self.in_file else f"SHIELDTX_KAFKA_{setting.upper()}"

    @property
    def addresses(self) -> list[str]:
        """The bootstrap servers as a list."""
        return [address.strip() for address in self.bootstrap_servers.split(",")]

    def options(self) -> dict[str, Any]:
        """Return the settings that producers, consumers and admins share."""
        options = {
            "bootstrap_servers": self.addresses,
            "client_id": self.client_id,
            "security_protocol": self.security_protocol,
            "reconnect_backoff_max_ms": RECONNECTION_MS,
        }
        if self.tokens is not None and self.sasl_mechanism == "OAUTHBEARER":
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_oauth_token_provider"] = self.tokens
        elif self.security_protocol.startswith("SASL") and self.sasl_password is not None:
            hide(self.sasl_password)
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = _Secret(self.sasl_password)
        if self.ssl_cafile is not None:
            options["ssl_cafile"] = self.ssl_cafile
        if self.ssl_certfile is not None:
            options["ssl_certfile"] = self.ssl_certfile
            options["ssl_keyfile"] = self.ssl_keyfile
            if self.ssl_key_password is not None:
                hide(self.ssl_key_password)
                options["ssl_password"] = _Secret(self.ssl_key_password)
        return options

    def open(
        self, kind: Callable[..., C], *, within: float, role: Role | None = None, **options: Any
    ) -> tuple[C, Network]:
        """Return a connected producer, consumer or admin, and its network client.

        The application's options of this `role` override the others.
        Raises BrokerUnavailable if no broker responds `within` the given seconds, BrokerError if
        the cluster refuses the client. A client that does not connect leaves nothing open.
        """
        require_parts()
        # Before any object is created that a failed attempt refers to: objects that survive a
        # collection count as old, and would keep the attempt alive.
        _free_failed_clients()
        options = self.options() | options
        if role is not None:
            options |= for_kafka_python(self.client_options.of(role))
        return self._open(kind, within, options)

    def _open(
        self, kind: Callable[..., C], within: float, options: Mapping[str, Any]
    ) -> tuple[C, Network]:
        networks: list[Network] = []

        def network(**configs: Any) -> Network:
            networks.append(Network(**configs))
            return networks[0]

        try:
            with self.translated("connecting", connects=True), connection_errors() as errors:
                try:
                    client = kind(
                        kafka_client=network,
                        bootstrap_timeout_ms=max(1, int(within * 1000)),
                        **options,
                    )
                except KafkaTimeoutError as error:
                    failures = [n.failure for n in networks if isinstance(n.failure, KafkaError)]
                    raise _most_precise([error, *failures, *errors]) from None
        except BaseException:
            # A constructor that fails leaves its sockets and its thread open.
            for half_made in networks:
                half_made.close()
            raise
        return client, networks[0]

    def unreachable(self, *, for_seconds: float, reason: Exception | None) -> BrokerUnavailable:
        """Return the error of a client that has failed to connect for some time."""
        _free_failed_clients()
        why = "" if reason is None else f": {self._explained(reason, connects=True)}"
        return BrokerUnavailable(
            f"Kafka at {self.bootstrap_servers} has not been reachable for {for_seconds:.1f} s{why}"
        )

    @contextmanager
    def translated(self, doing: str, *, connects: bool = False) -> Iterator[None]:
        """Raise the client's errors as BrokerUnavailable or BrokerError, with their cause.

        Where a client `connects`, an error may indicate settings that do not fit the port.
        """
        try:
            yield
        except KafkaError as error:
            message = self._message(error, doing, connects=connects)
            if isinstance(error, (RetriableError, BrokerNotAvailableError)):
                raise BrokerUnavailable(message) from error
            raise BrokerError(message) from error
        except OSError as error:
            if error.errno not in NONE_LEFT:
                raise
            raise BrokerUnavailable(self._message(error, doing, connects=connects)) from error

    def _message(self, error: Exception, doing: str, *, connects: bool) -> str:
        explained = self._explained(error, connects=connects)
        return f"Kafka at {self.bootstrap_servers}, {doing}: {explained}"

    def _explained(self, error: Exception, *, connects: bool) -> str:
        hint = hint_of_descriptors(error)
        if not hint and connects:
            hint = hint_of_protocol(error, self.security_protocol)
        return f"{error} ({hint})" if hint else str(error)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port[:6]) <= _HIGHEST_PORT
    return bool(host) and is_port and _NOT_IN_HOST.isdisjoint(host)


def _free_failed_clients() -> None:
    """Free the objects of earlier attempts to connect, which are in reference cycles.

    A worker's garbage collector runs rarely: while Kafka is unreachable, tens of megabytes would
    accumulate between two of its runs.
    """
    gc.collect(0)


def _most_precise(errors: Sequence[KafkaError]) -> KafkaError:
    """Return the last error that a retry would repeat, or else the most precise error.

    The cause of a failed attempt is more precise than its timeout, and that is more precise than
    the timeout of the whole.
    """
    lasting = [e for e in errors if not isinstance(e, RetriableError)]
    attempts = [e for e in errors if not isinstance(e, _TIMEOUTS)]
    # An attempt that timed out is a KafkaConnectionError, which the client raises while it handles
    # the timeout.
    failed = [e for e in attempts if not isinstance(e.__context__, _TIMEOUTS)]
    return (lasting or failed or attempts or list(errors))[-1]
