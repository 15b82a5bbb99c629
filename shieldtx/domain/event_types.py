"""The event types of a service, and the checks of their events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter

from shieldtx.domain.events import Event
from shieldtx.domain.payloads import encode_payload, payload_type, text_problem
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import ConfigurationError, EventRefused, TooLarge, UnknownEventType

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Event types, topics, sources and groups: Kafka's characters for topics (letters, digits, `.`,
`_`, `-`). Prefix and suffix still fit into Kafka's 249 characters."""

_UUID_VERSION = 7

HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def checked_name(what: str, name: str) -> str:
    """Return `name` if it can name a topic; raises ConfigurationError, which names `what` it is."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r} cannot be used: up to 200 of the characters A-Z a-z 0-9 . _ - "
            "and a letter or digit first"
        )
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class EventLimits:
    """How large the parts of an event may be, in bytes of UTF-8.

    The default payload fits Kafka's default `message.max.bytes` (1,048,588) with its headers.
    """

    payload: int = 1_000_000
    key: int = 512
    biz_key: int = 512
    headers: int = 16_384
    header_count: int = 128
    """A number of headers, not bytes: consumers park records with many more."""
    name: int = 256
    """For names that an event carries: its trace context, the source of its cause."""


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
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog | str | None = None,
    ) -> EventType:
        """Declare an event type, with the type of its payload, and return it.

        `payload` is a dataclass, a TypedDict or a pydantic model; None accepts any JSON value.
        `backlog_limit` is how many events of its topic may wait to be sent. `on_backlog` decides
        about further events: "refuse", "warn" or "ignore". Both default to the settings. Raises
        ConfigurationError for a bad name, for a payload type that pydantic does not support, or
        when the type is declared twice.
        """
        if name in self._types:
            raise ConfigurationError(f"event type {name!r} is declared twice; declare it once")
        event_type = EventType(
            name=checked_name("event type", name),
            topic=checked_name("topic", topic if topic is not None else name),
            payload=payload_type(payload, of=f"event type {name!r}"),
            retry=retry or RetryPolicy(),
            backlog_limit=self._backlog_limit
            if backlog_limit is None
            else _checked_limit(name, backlog_limit),
            on_backlog=self._on_backlog
            if on_backlog is None
            else _checked_on_backlog(name, on_backlog),
        )
        self.limits_backlogs = self.limits_backlogs or event_type.backlog_limit is not None
        self._types[name] = event_type
        return event_type

    def declare_at_method(
        self,
        name: str,
        *,
        infer_payload: Callable[[], Any],
        payload: Any,
        topic: str | None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Declare an event type where a method is decorated, unless `declare` has done so.

        Without `payload`, `infer_payload` returns its type. Raises ConfigurationError where the
        event type is declared and an argument is given here too.
        """
        if self.find(name) is None:
            inferred = infer_payload() if payload is None else payload
            self.declare(name, payload=inferred, topic=topic, retry=retry)
        elif any(given is not None for given in (payload, topic, retry)):
            raise ConfigurationError(
                f"event type {name!r} is declared already: give the payload's type, the topic and "
                "the retry policy to shield.declare, and leave them out of the decorator"
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

    def encode(self, event: Event) -> str:
        """Check every field of `event` and return its payload as JSON text.

        Raises EventRefused (PayloadRefused, TooLarge), which names the field.
        """
        declared = self.get(event.type)
        _check_kinds(event)
        if event.kind is TxKind.ROLLBACK and event.causation_id is None:
            raise EventRefused("causation_id", "a ROLLBACK must name the event that it takes back")
        self._check_texts(event)
        self._check_headers(event.headers)
        return encode_payload(declared.payload, event.payload, self.limits.payload)

    def check_trace(self, traceparent: str | None) -> None:
        """Raise EventRefused for a trace context that a header cannot contain."""
        if traceparent is not None:
            _check_text("traceparent", traceparent, self.limits.name)

    def _check_texts(self, event: Event) -> None:
        for name, text, limit in (
            ("key", event.key, self.limits.key),
            ("biz_key", event.biz_key, self.limits.biz_key),
            ("causation_source", event.causation_source, self.limits.name),
        ):
            if text is not None:
                _check_text(name, text, limit)
        self.check_trace(event.traceparent)

    def _check_headers(self, headers: Mapping[str, str]) -> None:
        if len(headers) > self.limits.header_count:
            limit = self.limits.header_count
            raise TooLarge("headers", f"{len(headers)} of them, the limit is {limit}")
        size = 0
        for name, value in headers.items():
            field_name = f"headers[{name!r}]"
            if not _is_header_name(name):
                raise EventRefused(field_name, "the name is reserved, too long or not plain ASCII")
            _check_text(field_name, value, self.limits.headers)
            size += len(name) + len(value.encode())
        if size > self.limits.headers:
            raise TooLarge("headers", f"{size} bytes, the limit is {self.limits.headers}")


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


def _is_header_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and HEADER_NAME.fullmatch(name) is not None
        and not name.lower().startswith(("ce_", "content-"))
    )


def _check_kinds(event: Event) -> None:
    """Refuse values of wrong types, which a type checker would find: the INSERT would fail."""
    kinds: tuple[tuple[str, Any, Any, str], ...] = (
        ("id", event.id, UUID, "a UUID"),
        ("kind", event.kind, TxKind, "a TxKind"),
        ("operation", event.operation, Operation, "an Operation"),
        ("headers", event.headers, Mapping, "a mapping of names to texts"),
        ("causation_id", event.causation_id, UUID | None, "a UUID"),
    )
    for name, value, type_, wanted in kinds:
        if not isinstance(value, type_):
            raise EventRefused(name, f"must be {wanted}, not {type(value).__name__}")
    if event.id.version != _UUID_VERSION:
        raise EventRefused("id", f"{event.id} is not a UUIDv7; leave it out, or use new_event_id()")


def _check_text(field_name: str, text: str, limit: int) -> None:
    problem = text_problem(text)
    if problem is not None:
        raise EventRefused(field_name, problem)
    size = len(text.encode())
    if size > limit:
        raise TooLarge(field_name, f"{size} bytes, the limit is {limit}")
