"""The fields of an event in addition to its payload, as the outbox checks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shieldtx.domain.events import Event
from shieldtx.domain.payloads import text_problem
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import EventRefused, TooLarge

HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_UUID_VERSION = 7


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


def check_fields(event: Event, limits: EventLimits) -> None:
    """Raise EventRefused, which names the field, for an event that cannot be stored or sent."""
    _check_kinds(event)
    if event.kind is TxKind.ROLLBACK and event.causation_id is None:
        raise EventRefused("causation_id", "a ROLLBACK must name the event that it takes back")
    for name, text, limit in (
        ("key", event.key, limits.key),
        ("biz_key", event.biz_key, limits.biz_key),
        ("causation_source", event.causation_source, limits.name),
    ):
        if text is not None:
            check_text(name, text, limit)
    check_trace(event.traceparent, limits)
    check_headers(event.headers, limits)


def check_trace(traceparent: str | None, limits: EventLimits) -> None:
    """Raise EventRefused for a trace context that a header cannot contain."""
    if traceparent is not None:
        check_text("traceparent", traceparent, limits.name)


def check_headers(headers: Mapping[str, str], limits: EventLimits) -> None:
    """Raise EventRefused for headers that a record cannot contain."""
    if len(headers) > limits.header_count:
        limit = limits.header_count
        raise TooLarge("headers", f"{len(headers)} of them, the limit is {limit}")
    size = 0
    for name, value in headers.items():
        field_name = f"headers[{name!r}]"
        if not _is_header_name(name):
            raise EventRefused(field_name, "the name is reserved, too long or not plain ASCII")
        check_text(field_name, value, limits.headers)
        size += len(name) + len(value.encode())
    if size > limits.headers:
        raise TooLarge("headers", f"{size} bytes, the limit is {limits.headers}")


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


def check_text(field_name: str, text: str, limit: int) -> None:
    """Raise EventRefused, which names the field, for a text that cannot be stored or sent."""
    problem = text_problem(text)
    if problem is not None:
        raise EventRefused(field_name, problem)
    size = len(text.encode())
    if size > limit:
        raise TooLarge(field_name, f"{size} bytes, the limit is {limit}")
