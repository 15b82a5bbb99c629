"""The event types of a service, and what may be written as one of their events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from shieldtx.errors import (
    ConfigurationError,
    EventRefused,
    PayloadRefused,
    TooLarge,
    UnknownEventType,
)
from shieldtx.events import Event
from shieldtx.retry import RetryPolicy
from shieldtx.states import TxKind

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Event types, topics, sources and groups: Kafka's characters for topics (letters, digits, `.`,
`_`, `-`), and short enough that prefix and suffix fit into Kafka's 249."""

_UUID_VERSION = 7

HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def checked_name(what: str, name: str) -> str:
    """Return `name` if it can name a topic; raises ConfigurationError that says `what` it is."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r} cannot be used: up to 200 of the characters A-Z a-z 0-9 . _ - "
            "and a letter or digit first"
        )
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How large the parts of an event may be, in bytes of UTF-8.

    The default payload fits Kafka's default `message.max.bytes` (1,048,588) with its headers.
    """

    payload: int = 1_000_000
    key: int = 512
    biz_key: int = 512
    headers: int = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class EventType:
    """A declared event type: its topic, its payload's type, how often sending is tried."""

    name: str
    topic: str
    payload: TypeAdapter[Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class Catalog:
    """The event types that a service writes, by name."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._types: dict[str, EventType] = {}
        self.limits = limits or Limits()

    def __iter__(self) -> Iterator[EventType]:
        return iter(self._types.values())

    def declare(
        self,
        name: str,
        *,
        payload: Any = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> EventType:
        """Declare an event type, with the type of its payload.

        `payload` is a dataclass, a TypedDict or a pydantic model; None stands for any JSON value.
        Raises ConfigurationError for a bad name, or when the type is declared twice.
        """
        if name in self._types:
            raise ConfigurationError(f"event type {name!r} is declared twice; declare it once")
        event_type = EventType(
            name=checked_name("event type", name),
            topic=checked_name("topic", topic if topic is not None else name),
            payload=TypeAdapter(Any if payload is None else payload),
            retry=retry or RetryPolicy(),
        )
        self._types[name] = event_type
        return event_type

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
        self._check_texts(event)
        return encode_payload(self.get(event.type).payload, event.payload, self.limits.payload)

    def encode_plain(self, event: Event) -> str:
        """As `encode`, for the payload of an event that shieldtx makes itself."""
        self._check_texts(event)
        return encode_payload(_ANY, event.payload, self.limits.payload)

    def _check_texts(self, event: Event) -> None:
        if event.id.version != _UUID_VERSION:
            raise EventRefused(
                "id", f"{event.id} is no UUIDv7; leave it out, or use new_event_id()"
            )
        for name, text in (("key", event.key), ("biz_key", event.biz_key)):
            if text is not None:
                _check_text(name, text, getattr(self.limits, name))
        if event.kind is TxKind.ROLLBACK and event.causation_id is None:
            raise EventRefused("causation_id", "a ROLLBACK must name the event that it takes back")
        size = 0
        for name, value in event.headers.items():
            if not HEADER_NAME.fullmatch(name) or name.startswith(("ce_", "content-")):
                raise EventRefused(
                    f"headers[{name!r}]", "the name is reserved, too long or not plain ASCII"
                )
            _check_text(f"headers[{name!r}]", value, self.limits.headers)
            size += len(name) + len(value.encode())
        if size > self.limits.headers:
            raise TooLarge("headers", f"{size} bytes, the limit is {self.limits.headers}")


def encode_payload(adapter: TypeAdapter[Any], payload: Any, limit: int) -> str:
    """Return the JSON text of a payload that fits its type, or raise PayloadRefused or TooLarge."""
    try:
        valid = adapter.validate_python(payload)
        plain = adapter.dump_python(valid, mode="json", warnings="error")
    except ValidationError as error:
        first = error.errors()[0]
        raise PayloadRefused(_path(first["loc"]), first["msg"]) from error
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        raise PayloadRefused("payload", str(error)) from error
    try:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise PayloadRefused(*(_culprit(plain) or ("payload", str(error)))) from error
    if size > limit:
        raise TooLarge("payload", f"{size} bytes as JSON, the limit is {limit}")
    # The escape may also be a harmless backslash before "u0000": only a walk can tell.
    if "\\u0000" in text and (found := _culprit(plain)):
        raise PayloadRefused(*found)
    return text


def decode_payload(adapter: TypeAdapter[Any], text: str) -> Any:
    """Return the payload of a stored or received event; raises PayloadRefused."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise PayloadRefused(_path(first["loc"]), first["msg"]) from error


def _check_text(field_name: str, text: str, limit: int) -> None:
    problem = _text_problem(text)
    if problem:
        raise EventRefused(field_name, problem)
    size = len(text.encode())
    if size > limit:
        raise TooLarge(field_name, f"{size} bytes, the limit is {limit}")


def _text_problem(text: Any) -> str | None:
    if not isinstance(text, str):
        return f"must be text, not {type(text).__name__}"
    if "\x00" in text:
        return "holds a NUL character, which PostgreSQL cannot store"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "holds a lone surrogate, which is no text in UTF-8"
    return None


def _culprit(value: Any, path: str = "payload") -> tuple[str, str] | None:
    """Find the first part of a plain value that JSON text cannot carry, and say why."""
    if isinstance(value, str):
        problem = _text_problem(value)
        return (path, problem) if problem else None
    if isinstance(value, float) and not math.isfinite(value):
        return path, f"{value} is no JSON number"
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{path} (a key)", k) for k in value]
        parts += [(f"{path}.{k}", v) for k, v in value.items()]
    elif isinstance(value, Sequence):
        parts = [(f"{path}[{i}]", v) for i, v in enumerate(value)]
    return next((found for p, v in parts if (found := _culprit(v, p))), None)


def _path(location: Sequence[int | str]) -> str:
    parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in location)
    return "payload" + "".join(parts)
