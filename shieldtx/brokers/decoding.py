"""Records as envelopes; errors name the field that is not legal, or that no table can store.

Records of shieldtx are in binary mode with all attributes. A CloudEvent of another producer may
lack those that CloudEvents does not require, and may be in structured mode.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeVar
from uuid import UUID

from shieldtx.brokers.cloudevents import (
    CONSTANT_HEADERS,
    CONTENT_TYPE,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_SCHEMA_BYTES,
    SPEC_VERSION,
    is_reserved,
)
from shieldtx.brokers.header_text import (
    Headers,
    check_name,
    length_of,
    read_headers,
    shown,
    text_of,
    within,
)
from shieldtx.brokers.json_payload import json_payload
from shieldtx.brokers.structured_mode import in_binary_mode
from shieldtx.domain.events import Envelope
from shieldtx.domain.external_ids import (
    EXTERNAL_CAUSATION_ID,
    EXTERNAL_ID,
    event_id_of,
    foreign_text,
    uuid_of,
)
from shieldtx.domain.schedule import EARLIEST, LATEST
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord

_OURS: Final = frozenset(
    {
        "content-type",
        "ce_specversion",
        "ce_id",
        "ce_type",
        "ce_source",
        "ce_time",
        "ce_subject",
        "ce_dataschema",
        "ce_partitionkey",
        "ce_txkind",
        "ce_operation",
        "ce_bizkey",
        "ce_causationid",
        "ce_causationsource",
        "ce_traceparent",
        "ce_signature",
    }
)
"""The names that an envelope has fields for, or that are for other readers."""

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LEAP_SECOND: Final = re.compile(r"(?<=T\d\d:\d\d:)60")

E = TypeVar("E", bound=StrEnum)


def decode(record: ReceivedRecord, prefix: str, *, reader: str | None = None) -> Envelope:
    """Return the envelope that `record` carries; `reader` is the service that reads it.

    Raises UndecodableRecord, which names only the invalid header or part and its length: records of
    a topic may come from other producers than shieldtx, and their values may be customer data.
    """
    own, users = _headers(record)
    value = record.value
    is_structured = False
    if own.get("content-type") != CONTENT_TYPE or "ce_specversion" not in own:
        own, value, is_structured = in_binary_mode(own, value)
    if (version := _required(own, "ce_specversion")) != SPEC_VERSION:
        raise UndecodableRecord(f"ce_specversion: is not {SPEC_VERSION} {length_of(version)}")
    written = own.get("ce_txkind")
    # Only shieldtx names the kind, and it writes its records completely.
    is_foreign = written is None or is_structured
    kind = _kind_of(record.topic) if written is None else _member(TxKind, "ce_txkind", written)
    source = _named(own, "ce_source")
    event_id = uuid_of(text := _required(own, "ce_id")) or _foreign_id(text, source, users)
    if is_foreign or not _OURS.issuperset(own):
        _add_extensions(own, users, is_foreign=is_foreign)
    causation = own.get("ce_causationid")
    causation_id = None
    if causation is not None:
        # The ids of shieldtx are in small letters. Other producers may write capitals.
        is_ours = is_foreign and reader is not None and own.get("ce_causationsource") == reader
        causation_id = uuid_of(causation.lower() if is_ours else causation)
        causation_id = causation_id or _foreign_cause(causation, own, users, kind)
    if kind is TxKind.ROLLBACK:
        _check_rollback(event_id, causation_id, is_foreign=is_foreign)
    operation = own.get("ce_operation", Operation.INSERT)
    return Envelope(
        id=event_id,
        type=_named(own, "ce_type"),
        source=source,
        topic=_logical_topic(record.topic, prefix, kind),
        # An event of CloudEvents may have no data. shieldtx always writes a payload.
        payload="null" if is_foreign and not value else json_payload(value),
        time=_time(own.get("ce_time"), record),
        kind=kind,
        operation=_member(Operation, "ce_operation", operation),
        key=_foreign_key(record.key, own, users)
        if is_foreign
        else _key(record.key, own.get("ce_partitionkey")),
        biz_key=_optional(own, "ce_bizkey", MAX_KEY_BYTES),
        headers=users,
        causation_id=causation_id,
        causation_source=_optional(own, "ce_causationsource", MAX_NAME_BYTES),
        traceparent=_optional(own, "ce_traceparent", MAX_NAME_BYTES)
        if "ce_traceparent" in own
        else _plain_trace(users),
        # CloudEvents forbids an empty URI, which would name no schema.
        dataschema=_optional(own, "ce_dataschema", MAX_SCHEMA_BYTES) or None,
    )


def _headers(record: ReceivedRecord) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers of CloudEvents and the user's headers, as text."""
    headers = record.headers
    if len(headers) > MAX_HEADERS:
        raise UndecodableRecord(f"headers: {len(headers)}, the limit is {MAX_HEADERS}")
    try:
        own, users, size = _first_headers(headers[:CONSTANT_HEADERS])
        own, users = own.copy(), users.copy()
        read_headers(headers[CONSTANT_HEADERS:], own, users, size)
    except UndecodableRecord:
        # The headers of shieldtx's events are texts. Other producers write any bytes.
        if any(name == "ce_txkind" for name, _ in headers):
            raise
        own, users = {}, {}
        read_headers(headers, own, users, 0, is_foreign=True)
    return own, users


# Records of one type begin with the same headers, which `encode` writes first.
@lru_cache(maxsize=256)
def _first_headers(headers: Headers) -> tuple[dict[str, str], dict[str, str], int]:
    own: dict[str, str] = {}
    users: dict[str, str] = {}
    size = read_headers(headers, own, users, 0)
    return own, users, size


def _required(own: dict[str, str], name: str) -> str:
    try:
        return own[name]
    except KeyError:
        raise UndecodableRecord(f"{name}: the header is missing") from None


def _named(own: dict[str, str], name: str) -> str:
    text = _required(own, name)
    if not text:
        raise UndecodableRecord(f"{name}: is empty")
    return within(name, text, MAX_NAME_BYTES)


def _optional(own: dict[str, str], name: str, limit: int) -> str | None:
    text = own.get(name)
    return None if text is None else within(name, text, limit)


@lru_cache(maxsize=64)
def _member(enum: type[E], name: str, text: str) -> E:
    try:
        return enum(text)
    except ValueError:
        expected = ", ".join(enum)
        raise UndecodableRecord(f"{name}: is none of {expected} {length_of(text)}") from None


def _foreign_id(text: str, source: str, users: dict[str, str]) -> UUID:
    if not text:
        raise UndecodableRecord("ce_id: is empty")
    users[EXTERNAL_ID] = text
    return event_id_of(source, text)


def _foreign_cause(
    text: str, own: dict[str, str], users: dict[str, str], kind: TxKind
) -> UUID | None:
    """Return the UUID of a cause by its source and id; None where its source is not named."""
    by = own.get("ce_causationsource")
    if text and by:
        users[EXTERNAL_CAUSATION_ID] = text
        return event_id_of(by, text)
    if kind is TxKind.ROLLBACK:
        raise UndecodableRecord(
            f"ce_causationid: is not a UUID {length_of(text)}, and ce_causationsource does not "
            "name the source of the event"
        )
    # CloudEvents' extension for correlation has any text.
    users.setdefault("causationid", text)
    return None


def _check_rollback(event_id: UUID, causation_id: UUID | None, *, is_foreign: bool) -> None:
    if causation_id == event_id:
        raise UndecodableRecord("ce_causationid: a rollback cannot take itself back")
    if causation_id is None and is_foreign:
        raise UndecodableRecord(
            "ce_causationid: is missing: a ROLLBACK names the event that it takes back"
        )


def _add_extensions(own: dict[str, str], users: dict[str, str], *, is_foreign: bool) -> None:
    """Add the attributes that an envelope has no field for to the user's headers."""
    left = own.keys() - _OURS
    if is_foreign:
        left |= own.keys() & {"ce_subject"}
    for attribute in left:
        name = attribute.removeprefix("ce_")
        if name and name != attribute and not is_reserved(name):
            check_name(name)
            users[name] = own[attribute]


def _plain_trace(users: dict[str, str]) -> str | None:
    """Return the trace context that OpenTelemetry's instrumentations of Kafka clients write."""
    text = users.get("traceparent")
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


def _time(text: str | None, record: ReceivedRecord) -> datetime:
    if text is None:
        return record.sent_at or datetime.now(UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = _other_form(text)
    try:
        if time.tzinfo is None:
            raise UndecodableRecord(f"ce_time: has no time zone {length_of(text)}")
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UndecodableRecord(f"ce_time: is not a time of RFC 3339 {length_of(text)}") from None
    if not EARLIEST <= time <= LATEST:
        raise UndecodableRecord(
            f"ce_time: is beyond what every time zone can show {length_of(text)}"
        )
    return time


def _other_form(text: str) -> datetime:
    """Return a time in small letters or of a leap second, which RFC 3339 also has."""
    capital, leaps = _LEAP_SECOND.subn("59", text.upper())
    try:
        return datetime.fromisoformat(capital) + timedelta(seconds=leaps)
    except (ValueError, OverflowError):
        raise UndecodableRecord(f"ce_time: is not a time of RFC 3339 {length_of(text)}") from None


def _key(key: bytes | None, partition_key: str | None) -> str | None:
    text = None if key is None else text_of("key", key)
    if partition_key is not None and partition_key != text:
        raise UndecodableRecord("ce_partitionkey: differs from the record's key")
    return None if text is None else within("key", text, MAX_KEY_BYTES)


def _foreign_key(key: bytes | None, own: dict[str, str], users: dict[str, str]) -> str | None:
    text = partition_key = own.get("ce_partitionkey")
    if key is not None:
        # The key of the record decides its partition, and so the order.
        text = foreign_text(key)
        if partition_key not in {None, text}:
            users["partitionkey"] = partition_key or ""
    return None if text is None else within("key", text, MAX_KEY_BYTES)


def _kind_of(topic: str) -> TxKind:
    is_rollback = topic.endswith(f".{TxKind.ROLLBACK.lower()}")
    return TxKind.ROLLBACK if is_rollback else TxKind.COMMIT


@lru_cache(maxsize=4096)
def _logical_topic(topic: str, prefix: str, kind: TxKind) -> str:
    suffix = f".{kind.lower()}"
    logical = topic.removeprefix(prefix).removesuffix(suffix)
    if f"{prefix}{logical}{suffix}" != topic or not logical:
        raise UndecodableRecord(
            f"topic: {shown(topic)} does not fit the kind {kind} (ce_txkind) and prefix {prefix!r}"
        )
    return logical
