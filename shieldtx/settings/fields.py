"""Types of the values of settings, and their validation."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from shieldtx.brokers.signing import MIN_KEY_BYTES
from shieldtx.domain.durations import read_duration
from shieldtx.domain.event_types import checked_name
from shieldtx.errors import ConfigurationError
from shieldtx.store.dialects import dialect_named
from shieldtx.store.schema_settings import schema_name

_LONGEST = timedelta(days=36_525)
"""The longest duration that locks, databases and calendars can represent."""


_LAST_PORT = 65_535

_DRIVERS = {"postgresql", "postgresql+psycopg", "sqlite", "sqlite+pysqlite"}


def _in_range(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0 seconds")
    return _countable(value)


def _none_or_in_range(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError("must not be below 0 seconds")
    return _countable(value)


def _countable(value: timedelta) -> timedelta:
    if value > _LONGEST:
        raise ValueError(f"must not be longer than a century ({_LONGEST.days} days)")
    return value


Seconds = Annotated[timedelta, BeforeValidator(read_duration), AfterValidator(_in_range)]
"""A duration: a number of seconds, with units (`15 min`), or ISO 8601 (`PT30S`)."""


SecondsOrNever = Annotated[
    timedelta, BeforeValidator(read_duration), AfterValidator(_none_or_in_range)
]
"""A duration, or 0."""


def _name(value: str) -> str:
    try:
        return checked_name("the name", value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _schema(value: str | None) -> str | None:
    try:
        return schema_name(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _url(value: SecretStr) -> SecretStr:
    # The message contains no part of the text: any part may be a password.
    malformed = ValueError(
        "not a database URL; it looks like postgresql+psycopg://user:password@host:5432/name, "
        "with %40 for an @ in the password"
    )
    # Heroku, Render and others name the scheme so, and SQLAlchemy does not accept it any more.
    scheme, separator, rest = value.get_secret_value().partition("://")
    if separator and scheme == "postgres":
        value = SecretStr(f"postgresql+psycopg://{rest}")
    try:
        value.get_secret_value().encode()
        url = make_url(value.get_secret_value())
        dialect_named(url.get_backend_name())
    except (ArgumentError, ValueError):
        raise malformed from None
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if url.drivername not in _DRIVERS:
        raise ValueError(
            f"a driver that shieldtx does not speak: use {' or '.join(sorted(_DRIVERS))}"
        )
    # SQLAlchemy would take the end of a password with an @ for the host, and errors would show it.
    if url.password is not None and "@" in f"{url.host}{url.database}":
        raise malformed
    try:
        url.get_dialect()().create_connect_args(url)
    except ArgumentError:  # contradictory hosts and ports
        raise malformed from None
    return value


def _signing_keys(value: SecretStr | None) -> SecretStr | None:
    if value is None:
        return None
    for place, key in enumerate(value.get_secret_value().split(","), 1):
        if not key.isascii():
            raise ValueError(f"key {place} holds other characters than those of ASCII")
        size = len(key.strip())
        if size < MIN_KEY_BYTES:
            raise ValueError(
                f"key {place} has {size} bytes, the least is {MIN_KEY_BYTES}; "
                "make one with `openssl rand -hex 32`"
            )
    return value


def _address(value: str | None) -> str | None:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and int(port) <= _LAST_PORT
    if not host or not is_number:
        raise ValueError("not an address; it looks like 127.0.0.1:9464, or [::1]:9464")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""A name of a service, a group or a topic: letters, digits, dots, underscores, hyphens."""

SchemaName = Annotated[str | None, AfterValidator(_schema)]
"""A database schema; None for the default schema of the connection."""

DatabaseUrl = Annotated[SecretStr, AfterValidator(_url)]
"""A database URL with a supported driver; a secret, since it may contain a password."""

SigningKeys = Annotated[SecretStr | None, AfterValidator(_signing_keys)]
"""Keys for signatures, separated by commas; None without signatures."""

HttpAddress = Annotated[
    str | None,
    AfterValidator(_address),
    Field(
        description="address at which a relay or consumer serves /metrics, /livez and /readyz, as "
        "host:port; with port 0 it takes a free one and prints it (default: none)",
    ),
]
Concurrency = Annotated[
    int,
    Field(
        ge=1,
        le=256,
        description="keys handled at the same time by a consumer, each in order; 1 on SQLite",
    ),
]
BreakerLength = Annotated[
    int,
    Field(
        ge=0,
        le=1000,
        description="number of different events that fail with the same error, without a success "
        "between, at which a consumer pauses their handler; 0 disables it",
    ),
]
ProbeInterval = Annotated[
    Seconds,
    Field(
        description="wait before the first probe of a handler that the breaker has paused; it "
        "doubles up to 5 minutes",
    ),
]
