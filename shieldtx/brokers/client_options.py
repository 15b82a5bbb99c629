"""Options of the Kafka clients that an application may set, by the names of Kafka's documentation.

An option that would break a promise of shieldtx is refused with the reason, an unknown one by name.
No Kafka client is imported here: the settings are checked before a process needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from shieldtx.errors import ConfigurationError


class Role(Enum):
    """A kind of client."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


ALL: Final = frozenset(Role)
_READS: Final = frozenset({Role.CONSUMER})
_WRITES: Final = frozenset({Role.PRODUCER})


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An option, with its type, its limits, and its names in the clients."""

    meaning: str
    roles: frozenset[Role] = ALL
    least: int | None = None
    """None for an option that is a text."""
    most: int | None = None
    choices: tuple[str, ...] = ()
    librdkafka: str | None = None
    """Its name in librdkafka, if that differs. In kafka-python it has underscores for dots."""

    def checked(self, name: str, value: Any) -> str | int:
        """Return the value in its type; raises ValueError with the reason."""
        if self.least is None:
            if not isinstance(value, str) or (self.choices and value not in self.choices):
                expected = f"one of {', '.join(self.choices)}" if self.choices else "a text"
                raise ValueError(f"{name} must be {expected}, not {value!r}")
            return value
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} must be a whole number, not {value!r}")  # noqa: TRY004  as below
        if not self.least <= value <= (self.most or value):
            raise ValueError(f"{name} must be {self.least} to {self.most}, not {value}")
        return value


def _whole(meaning: str, least: int, most: int, **how: Any) -> Option:
    return Option(meaning=meaning, least=least, most=most, **how)


_MINUTE: Final = 60_000
_MIB: Final = 1024 * 1024

ALLOWED: Final[Mapping[str, Option]] = {
    "client.id": Option(meaning="name of the client in the brokers' logs and quotas"),
    "client.rack": Option(
        meaning="rack of the consumer, to read from the nearest replica", roles=_READS
    ),
    "client.dns.lookup": Option(
        meaning="addresses of a host name that are tried",
        choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    "compression.type": Option(
        meaning="compression of batches",
        roles=_WRITES,
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    "batch.size": _whole("bytes of a batch of records", 1024, 16 * _MIB, roles=_WRITES),
    "linger.ms": _whole("wait for a fuller batch", 0, 100, roles=_WRITES),
    "fetch.min.bytes": _whole("bytes for which a fetch waits", 1, _MIB, roles=_READS),
    "fetch.max.wait.ms": _whole("longest wait of a fetch", 0, 5_000, roles=_READS),
    "fetch.max.bytes": _whole("bytes of a fetch", 65_536, 256 * _MIB, roles=_READS),
    "max.partition.fetch.bytes": _whole(
        "bytes of a fetch from one partition", 65_536, 256 * _MIB, roles=_READS
    ),
    "request.timeout.ms": _whole("wait for a response of a broker", 1_000, _MINUTE),
    "metadata.max.age.ms": _whole(
        "age at which metadata are refreshed",
        1_000,
        10 * _MINUTE,
        librdkafka="topic.metadata.refresh.interval.ms",
    ),
    "connections.max.idle.ms": _whole("rest before a connection is closed", _MINUTE, 60 * _MINUTE),
    "reconnect.backoff.ms": _whole("first wait before a reconnection", 10, 10_000),
    "reconnect.backoff.max.ms": _whole("longest wait before a reconnection", 10, 10_000),
    "retry.backoff.ms": _whole("wait before a request is repeated", 10, 10_000),
    "send.buffer.bytes": _whole(
        "size of the socket's send buffer", 4_096, 16 * _MIB, librdkafka="socket.send.buffer.bytes"
    ),
    "receive.buffer.bytes": _whole(
        "size of the socket's receive buffer",
        4_096,
        16 * _MIB,
        librdkafka="socket.receive.buffer.bytes",
    ),
}

RECONNECTION_MS: Final = 1_000
"""Longest wait before a reconnection. The client's default of half a minute would prolong an outage
by that time."""

_FIRST_WAIT: Final = "reconnect.backoff.ms"
_LONGEST_WAIT: Final = "reconnect.backoff.max.ms"
_FIRST_WAIT_MS: Final = 100
"""The default of librdkafka. The default of kafka-python is shorter."""

CONSUMER_TIMES: Final[Mapping[str, int]] = {
    "fetch.max.wait.ms": 500,
    "request.timeout.ms": 10_000,
    "connections.max.idle.ms": 540_000,
}
"""The defaults of a consumer. kafka-python requires that each of these times is below the next."""

_ORDER: Final = "acknowledged events must be in the log once, in order per key"
_SETTING: Final = "use the setting {}, which shieldtx checks against its other settings"
_ACCOUNT: Final = "use the settings SHIELDTX_KAFKA_SECURITY_PROTOCOL, _SASL_... and _SSL_..."

REFUSED: Final[Mapping[str, str]] = {
    "acks": f"shieldtx needs acks=all: {_ORDER}",
    "enable.idempotence": f"shieldtx needs an idempotent producer: {_ORDER}",
    "max.in.flight.requests.per.connection": f"it is at most 5 already: {_ORDER}",
    "retries": "the deadline of a batch, SHIELDTX_RELAY_SEND_TIMEOUT, ends its retries",
    "delivery.timeout.ms": "a batch must end within the relay's lease: set "
    "SHIELDTX_RELAY_SEND_TIMEOUT",
    "max.block.ms": "a batch must end within the relay's lease: set SHIELDTX_RELAY_SEND_TIMEOUT",
    "max.request.size": "it follows from SHIELDTX_MAX_PAYLOAD_BYTES",
    "message.max.bytes": "it follows from SHIELDTX_MAX_PAYLOAD_BYTES",
    "partitioner": "the order per key needs the same partition from every process",
    "partitioner.class": "the order per key needs the same partition from every process",
    "transactional.id": "events are sent outside of Kafka's transactions",
    "transaction.timeout.ms": "events are sent outside of Kafka's transactions",
    "enable.auto.commit": "offsets are committed after the inbox: otherwise events get lost",
    "auto.commit.interval.ms": "offsets are committed after the inbox: otherwise events get lost",
    "auto.offset.reset": "a new group must begin with the oldest record: otherwise events get lost",
    "isolation.level": "records of aborted transactions must never be handled",
    "check.crcs": "damaged records must not be handled",
    "group.id": "it is the name of the consumer group; SHIELDTX_KAFKA_GROUP_PREFIX precedes it",
    "group.instance.id": _SETTING.format("SHIELDTX_CONSUMER_INSTANCE_ID"),
    "group.protocol": "the consumer uses the classic protocol of groups",
    "partition.assignment.strategy": "all members of a group need the same assignors",
    "session.timeout.ms": _SETTING.format("SHIELDTX_CONSUMER_SESSION_TIMEOUT"),
    "heartbeat.interval.ms": _SETTING.format("SHIELDTX_CONSUMER_HEARTBEAT_INTERVAL"),
    "max.poll.interval.ms": _SETTING.format("SHIELDTX_CONSUMER_MAX_POLL_INTERVAL"),
    "max.poll.records": _SETTING.format("SHIELDTX_CONSUMER_BATCH_SIZE"),
    "bootstrap.servers": _SETTING.format("SHIELDTX_KAFKA_BOOTSTRAP"),
    "allow.auto.create.topics": "topics are created by `shieldtx topics create` alone",
    "key.serializer": "shieldtx defines the records on the wire",
    "value.serializer": "shieldtx defines the records on the wire",
    "key.deserializer": "shieldtx defines the records on the wire",
    "value.deserializer": "shieldtx defines the records on the wire",
    "interceptor.classes": "hooks of shieldtx do this: see the guide on hooks",
    "security.protocol": _ACCOUNT,
}
"""Options that are refused, with the reason."""


def refusal(name: str) -> str | None:
    """Return why an option is refused; None for an allowed or an unknown option."""
    if name in ALLOWED:
        return None
    return REFUSED.get(name) or (_ACCOUNT if name.startswith(("sasl.", "ssl.")) else None)


def checked_options(place: str, given: Mapping[str, Any], role: Role | None) -> dict[str, Any]:
    """Return the options of one role, or of all clients (None), in their types.

    Raises ConfigurationError, which names the `place` of the options and each invalid option.
    """
    problems: list[str] = []
    options: dict[str, Any] = {}
    for name, value in given.items():
        if (option := ALLOWED.get(name)) is None:
            problems.append(_problem(name))
        elif role is not None and role not in option.roles:
            problems.append(f"{name} is not an option of a {role.value}")
        elif name == "client.id" and role is not None:
            problems.append("client.id is the same for all clients of a service: set it for all")
        else:
            try:
                options[name] = option.checked(name, value)
            except ValueError as error:
                problems.append(str(error))
    if problems:
        raise ConfigurationError(f"{place}: {'; '.join(problems)}")
    return options


def _problem(name: str) -> str:
    if reason := refusal(name):
        return f"{name} cannot be set: {reason}"
    # kafka-python's notation is the most frequent mistake.
    nearest = get_close_matches(name.replace("_", "."), [*ALLOWED, *REFUSED], n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{name} is not an option that shieldtx knows{hint}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientOptions:
    """The options of all clients, and those of each role, which override them."""

    common: Mapping[str, Any] = field(default_factory=dict)
    producer: Mapping[str, Any] = field(default_factory=dict)
    consumer: Mapping[str, Any] = field(default_factory=dict)
    admin: Mapping[str, Any] = field(default_factory=dict)

    def of(self, role: Role) -> dict[str, Any]:
        """Return the options that a client of this role gets, except its name."""
        common = {name: v for name, v in self.common.items() if role in ALLOWED[name].roles}
        options = common | dict(getattr(self, role.value))
        options.pop("client.id", None)
        return options | _other_wait(options)

    def conflicts(self) -> Iterator[str]:
        """Yield a line about each pair of options with which a client does not start."""
        for role in Role:
            options = self.of(role)
            first, longest = options.get(_FIRST_WAIT), options.get(_LONGEST_WAIT)
            if first is not None and longest is not None and first > longest:
                yield (
                    f"{_FIRST_WAIT} of {role.value}s ({first}) must not be above {_LONGEST_WAIT} "
                    f"({longest})"
                )
        times = {**CONSUMER_TIMES, **self.of(Role.CONSUMER)}
        for (shorter, low), (longer, high) in pairwise(
            (name, times[name]) for name in CONSUMER_TIMES
        ):
            if low >= high:
                yield f"{shorter} of consumers ({low}) must be below {longer} ({high})"

    @property
    def client_id(self) -> str | None:
        """The name of all clients; None for the default."""
        return self.common.get("client.id")


def _other_wait(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other wait before a reconnection, if one is given and contradicts its default.

    librdkafka refuses a first wait above the longest one.
    """
    first, longest = options.get(_FIRST_WAIT), options.get(_LONGEST_WAIT)
    if first is not None and longest is None and first > RECONNECTION_MS:
        return {_LONGEST_WAIT: first}
    if longest is not None and first is None and longest < _FIRST_WAIT_MS:
        return {_FIRST_WAIT: longest}
    return {}


def for_kafka_python(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names of kafka-python."""
    return {
        # The client's word for no compression is None.
        name.replace(".", "_"): None if (name, value) == ("compression.type", "none") else value
        for name, value in options.items()
    }


def for_librdkafka(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names of librdkafka."""
    return {ALLOWED[name].librdkafka or name: value for name, value in options.items()}
