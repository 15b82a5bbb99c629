"""The event types of a service."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from shieldtx.domain.event_fields import EventLimits, check_fields, check_trace
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.payloads import encode_payload, payload_type
from shieldtx.domain.retry import RetryPolicy, checked_retry
from shieldtx.domain.schema_versions import (
    FIRST,
    Upcaster,
    Upcasters,
    checked_version,
    dataschema_of,
)
from shieldtx.errors import ConfigurationError, UnknownEventType

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Event types, topics, sources and groups: Kafka's characters for topics (letters, digits, `.`,
`_`, `-`). Prefix and suffix still fit into Kafka's 249 characters."""

_MAX_TYPE_BYTES = 256


def checked_name(what: str, name: str) -> str:
    """Return `name` if it can name a topic; raises ConfigurationError, which names `what` it is."""
    _refuse_others_than_text(what, name)
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r} cannot be used: up to 200 of the characters A-Z a-z 0-9 . _ - "
            "and a letter or digit first"
        )
    return name


def checked_type(name: str) -> str:
    """Return the type of events that other producers may write; raises ConfigurationError.

    CloudEvents allows any text without control characters.
    """
    _refuse_others_than_text("event type", name)
    if not name or not name.isprintable() or len(name.encode()) > _MAX_TYPE_BYTES:
        raise ConfigurationError(
            f"event type {name!r} cannot be used: 1 to {_MAX_TYPE_BYTES} bytes of printable text"
        )
    return name


def _refuse_others_than_text(what: str, name: object) -> None:
    if isinstance(name, str):
        return
    hint = f", as in @...({what!r})" if callable(name) else ""
    raise ConfigurationError(f"{what} must be a text, not a {type(name).__name__}{hint}")


class OnBacklog(StrEnum):
    """What happens to a new event when too many events of its topic wait to be sent."""

    REFUSE = "refuse"
    """Raise BacklogExceeded, and write nothing."""
    WARN = "warn"
    """Write the event, and log a warning once a minute."""
    IGNORE = "ignore"
    """Write the event, without counting the backlog."""


MOST_BACKLOG = 1_000_000
"""The highest limit of a backlog: the count reads up to this number of rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventType:
    """A declared event type: its topic, its payload's type, its retry policy and backlog limit."""

    name: str
    topic: str
    payload: TypeAdapter[Any]
    declared_payload: Any = None
    """The payload's type as it was declared; None: any JSON value."""
    version: int | None = None
    """The version of the payload's schema, which its events carry; None: they carry none."""
    dataschema: str | None = None
    """The URI of that version."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    backlog_limit: int | None = None
    """The maximum number of events of its topic that may wait to be sent; None: any number."""
    on_backlog: OnBacklog = OnBacklog.REFUSE


class EventTypeRegistry:
    """The event types that a service writes, by name."""

    def __init__(
        self,
        limits: EventLimits | None = None,
        *,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog = OnBacklog.REFUSE,
    ) -> None:
        """Create an empty registry; `backlog_limit` and `on_backlog` are defaults for its types."""
        self._types: dict[str, EventType] = {}
        self._own_limits: dict[str, tuple[int | None, OnBacklog | None]] = {}
        """The limit and the action that each type was declared with, not those of the settings."""
        self.upcasters = Upcasters()
        """The upcasters of events that the service writes or receives."""
        self.limits = limits or EventLimits()
        self.limits_backlogs = False
        """Whether some type has a limit."""
        self._backlog_limit = backlog_limit
        self._on_backlog = on_backlog

    def __iter__(self) -> Iterator[EventType]:
        return iter(self._types.values())

    def declare(
        self,
        name: str,
        *,
        payload: Any = None,
        version: int | None = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog | str | None = None,
    ) -> EventType:
        """Declare an event type, with the type of its payload, and return it.

        `payload` is a dataclass, a TypedDict or a pydantic model; None accepts any JSON value.
        `version` is the version of its schema.
        `backlog_limit` is how many events of its topic may wait to be sent. `on_backlog` decides
        about further events: "refuse", "warn" or "ignore". Both default to the settings. Raises
        ConfigurationError for a bad name, for a payload type that pydantic does not support, or
        when the type is declared twice.
        """
        if name in self._types:
            raise ConfigurationError(f"event type {name!r} is declared twice; declare it once")
        own_limit = None if backlog_limit is None else _checked_limit(name, backlog_limit)
        own_action = None if on_backlog is None else _checked_on_backlog(name, on_backlog)
        event_type = EventType(
            name=checked_name("event type", name),
            topic=checked_name("topic", topic if topic is not None else name),
            payload=payload_type(payload, of=f"event type {name!r}"),
            declared_payload=payload,
            version=checked_version(version, of=f"event type {name!r}"),
            dataschema=None if version is None else dataschema_of(name, version),
            retry=checked_retry(retry, of=f"event type {name!r}"),
            backlog_limit=self._backlog_limit if own_limit is None else own_limit,
            on_backlog=self._on_backlog if own_action is None else own_action,
        )
        self._check_version(event_type.version, name)
        self.limits_backlogs = self.limits_backlogs or event_type.backlog_limit is not None
        self._types[name] = event_type
        self._own_limits[name] = own_limit, own_action
        return event_type

    def limit(
        self, limits: EventLimits, *, backlog_limit: int | None, on_backlog: OnBacklog
    ) -> None:
        """Replace the limits given to the constructor, also for the types declared so far."""
        self.limits, self._backlog_limit, self._on_backlog = limits, backlog_limit, on_backlog
        for name, (own_limit, own_action) in self._own_limits.items():
            self._types[name] = replace(
                self._types[name],
                backlog_limit=backlog_limit if own_limit is None else own_limit,
                on_backlog=on_backlog if own_action is None else own_action,
            )
        self.limits_backlogs = any(t.backlog_limit is not None for t in self)

    def declare_at_method(
        self,
        name: str,
        *,
        infer_payload: Callable[[], Any],
        payload: Any,
        topic: str | None,
        version: int | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Declare an event type where a method is decorated, unless `declare` has done so.

        Without `payload`, `infer_payload` returns its type. Raises ConfigurationError where the
        event type is declared and an argument is given here too.
        """
        if self.find(name) is None:
            inferred = infer_payload() if payload is None else payload
            self.declare(name, payload=inferred, version=version, topic=topic, retry=retry)
        elif any(given is not None for given in (payload, version, topic, retry)):
            raise ConfigurationError(
                f"event type {name!r} is declared already: give the payload's type, its version, "
                "the topic and the retry policy to shield.declare, and leave them out of the "
                "decorator"
            )

    def declare_upcaster(self, name: str, from_version: int, function: Upcaster) -> None:
        """Declare the upcaster of a type from a version to the next; raises ConfigurationError."""
        self.upcasters.declare(checked_name("event type", name), from_version, function)
        if (declared := self.find(name)) is not None:
            self._check_version(declared.version, name)

    def _check_version(self, version: int | None, name: str) -> None:
        """Refuse a version that an upcaster of the type leaves: its events would be misread."""
        newest = self.upcasters.newest(name)
        if newest > (version or FIRST):
            raise ConfigurationError(
                f"event type {name!r} has an upcaster to version {newest}, and is declared "
                + (f"with version {version}" if version else "without a version")
                + f": declare version={newest}"
            )

    def find(self, name: str) -> EventType | None:
        """Return a declared type, or None."""
        return self._types.get(name)

    def get(self, name: str) -> EventType:
        """Return a declared type; raises UnknownEventType."""
        try:
            return self._types[name]
        except KeyError:
            known = ", ".join(sorted(self._types)) or "none yet"
            raise UnknownEventType(
                f"event type {name!r} is not declared (declared: {known}); "
                "declare it with @shield.publishes or shield.declare"
            ) from None

    def read(self, envelope: Envelope) -> Any:
        """Return the payload of an event that this service wrote, in the declared version.

        Raises UnknownEventType, and the errors of `Upcasters.read`.
        """
        declared = self.get(envelope.type)
        return self.upcasters.read(declared.payload, envelope, declared.version)

    def encode(self, event: Event) -> str:
        """Check every field of `event` and return its payload as JSON text.

        Raises EventRefused (PayloadRefused, TooLarge), which names the field.
        """
        declared = self.get(event.type)
        check_fields(event, self.limits)
        return encode_payload(declared.payload, event.payload, self.limits.payload)

    def check_trace(self, traceparent: str | None) -> None:
        """Raise EventRefused for a trace context that a header cannot contain."""
        check_trace(traceparent, self.limits)


def _checked_limit(name: str, limit: int) -> int:
    if not 1 <= limit <= MOST_BACKLOG:
        raise ConfigurationError(
            f"event type {name!r}: backlog_limit {limit} must be from 1 to {MOST_BACKLOG:,}; "
            'for none, use on_backlog="ignore"'
        )
    return limit


def _checked_on_backlog(name: str, word: str) -> OnBacklog:
    try:
        return OnBacklog(word)
    except ValueError:
        words = ", ".join(OnBacklog)
        raise ConfigurationError(
            f"event type {name!r}: on_backlog {word!r} must be one of {words}"
        ) from None
