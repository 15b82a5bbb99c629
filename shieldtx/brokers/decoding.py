"""Records as envelopes; errors name the field that no outbox writes, or that no table can store."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic_core import from_json

from shieldtx.brokers.cloudevents import (
    CONSTANT_HEADERS,
    CONTENT_TYPE,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SCHEMA_BYTES,
    SPEC_VERSION,
    is_reserved,
)
from shieldtx.domain.events import Envelope
from shieldtx.domain.schedule import EARLIEST, LATEST
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord

_MOST_BYTES: Final = 4
"""Maximum bytes of a character in UTF-8."""


_UUID_LENGTH: Final = 36


# Maps each digit to 0: searching for zeros takes a fifth of the time of a regular expression.
_SHAPE: Final = bytes.maketrans(b"123456789E", b"000000000e")


_MANY_DIGITS: Final = b"0" * 200


_SHOWN_CHARACTERS: Final = 80


_Headers = tuple[tuple[str, bytes | None], ...]


E = TypeVar("E", bound=StrEnum)


def decode(record: ReceivedRecord, prefix: str) -> Envelope:
    """Return the envelope that `record` carries.

    Raises UndecodableRecord, which names only the invalid header or part and its length: records of
    a topic may come from other producers than shieldtx, and their values may be customer data.
    """
    own, users = _headers(record)
    if (version := _required(own, "ce_specversion")) != SPEC_VERSION:
        raise UndecodableRecord(f"ce_specversion: is not {SPEC_VERSION} {_length(version)}")
    content_type = _required(own, "content-type")
    if content_type != CONTENT_TYPE and not _is_json(content_type):
        raise UndecodableRecord(f"content-type: is not {CONTENT_TYPE} {_length(content_type)}")
    kind = _member(TxKind, "ce_txkind", _required(own, "ce_txkind"))
    event_id = _uuid("ce_id", _required(own, "ce_id"))
    causation = own.get("ce_causationid")
    causation_id = None if causation is None else _uuid("ce_causationid", causation)
    if causation_id == event_id and kind is TxKind.ROLLBACK:
        raise UndecodableRecord("ce_causationid: a rollback cannot take itself back")
    return Envelope(
        id=event_id,
        type=_named(own, "ce_type"),
        source=_named(own, "ce_source"),
        topic=_logical_topic(record.topic, prefix, kind),
        payload=_payload(record.value),
        time=_time(_required(own, "ce_time")),
        kind=kind,
        operation=_member(Operation, "ce_operation", _required(own, "ce_operation")),
        key=_key(record.key, own.get("ce_partitionkey")),
        biz_key=_optional(own, "ce_bizkey", MAX_KEY_BYTES),
        headers=users,
        causation_id=causation_id,
        causation_source=_optional(own, "ce_causationsource", MAX_NAME_BYTES),
        traceparent=_optional(own, "ce_traceparent", MAX_NAME_BYTES),
        # CloudEvents forbids an empty URI, which would name no schema.
        dataschema=_optional(own, "ce_dataschema", MAX_SCHEMA_BYTES) or None,
    )


def _headers(record: ReceivedRecord) -> tuple[dict[str, str], dict[str, str]]:
    """Return shieldtx's own headers and the user's headers, as text."""
    headers = record.headers
    if len(headers) > MAX_HEADERS:
        raise UndecodableRecord(f"headers: {len(headers)}, the limit is {MAX_HEADERS}")
    own, users, size = _first_headers(headers[:CONSTANT_HEADERS])
    own, users = own.copy(), users.copy()
    _read_headers(headers[CONSTANT_HEADERS:], own, users, size)
    return own, users


# Records of one type begin with the same headers, which `encode` writes first.
@lru_cache(maxsize=256)
def _first_headers(headers: _Headers) -> tuple[dict[str, str], dict[str, str], int]:
    own: dict[str, str] = {}
    users: dict[str, str] = {}
    size = _read_headers(headers, own, users, 0)
    return own, users, size


def _read_headers(headers: _Headers, own: dict[str, str], users: dict[str, str], size: int) -> int:
    """Add headers to those before them, whose size is `size` bytes; return the total size."""
    for name, value in headers:
        if value is None:
            raise UndecodableRecord(f"header {_shown(name)}: has no value")
        size += len(name) + len(value)
        if size > MAX_HEADER_BYTES:
            raise UndecodableRecord(f"headers: above the limit of {MAX_HEADER_BYTES} bytes")
        text = _text(name, value)
        if not is_reserved(name):
            _check_name(name)
            users[name] = text
        elif name in own:
            raise UndecodableRecord(f"header {_shown(name)}: occurs twice")
        else:
            own[name] = text
    return size


def _check_name(name: str) -> None:
    if "\x00" in name:
        raise UndecodableRecord(f"header {_shown(name)}: has a NUL character in its name")
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise UndecodableRecord(f"header {_shown(name)}: its name is not UTF-8")


def _text(part: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise UndecodableRecord(f"{_shown(part)}: is not UTF-8 ({error.reason})") from error
    if "\x00" in text:
        raise UndecodableRecord(
            f"{_shown(part)}: holds a NUL character, which PostgreSQL cannot store"
        )
    return text


def _required(own: dict[str, str], name: str) -> str:
    try:
        return own[name]
    except KeyError:
        raise UndecodableRecord(f"{name}: the header is missing") from None


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == CONTENT_TYPE


def _named(own: dict[str, str], name: str) -> str:
    text = _required(own, name)
    if not text:
        raise UndecodableRecord(f"{name}: is empty")
    return _within(name, text, MAX_NAME_BYTES)


def _optional(own: dict[str, str], name: str, limit: int) -> str | None:
    text = own.get(name)
    return None if text is None else _within(name, text, limit)


def _within(part: str, text: str, limit: int) -> str:
    if len(text) * _MOST_BYTES <= limit:
        return text
    size = len(text.encode())
    if size > limit:
        raise UndecodableRecord(f"{part}: {size} bytes, the limit is {limit}")
    return text


@lru_cache(maxsize=64)
def _member(enum: type[E], name: str, text: str) -> E:
    try:
        return enum(text)
    except ValueError:
        expected = ", ".join(enum)
        raise UndecodableRecord(f"{name}: is none of {expected} {_length(text)}") from None


def _uuid(name: str, text: str) -> UUID:
    # UUID() also accepts braces, URNs and digits of other scripts. This requires 32 digits without
    # them, and fromhex() accepts only ASCII digits.
    try:
        if len(text) == _UUID_LENGTH and text[8:24:5] == "----":
            return UUID(bytes=bytes.fromhex(text.replace("-", "")))
    except ValueError:
        pass
    raise UndecodableRecord(f"{name}: is not a UUID {_length(text)}")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise UndecodableRecord(f"ce_time: has no time zone {_length(text)}")
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UndecodableRecord(f"ce_time: is not a time of RFC 3339 {_length(text)}") from None
    if not EARLIEST <= time <= LATEST:
        raise UndecodableRecord(f"ce_time: is beyond what every time zone can show {_length(text)}")
    return time


def _key(key: bytes | None, partition_key: str | None) -> str | None:
    text = None if key is None else _text("key", key)
    if partition_key is not None and partition_key != text:
        raise UndecodableRecord("ce_partitionkey: differs from the record's key")
    return None if text is None else _within("key", text, MAX_KEY_BYTES)


@lru_cache(maxsize=4096)
def _logical_topic(topic: str, prefix: str, kind: TxKind) -> str:
    suffix = f".{kind.lower()}"
    logical = topic.removeprefix(prefix).removesuffix(suffix)
    if f"{prefix}{logical}{suffix}" != topic or not logical:
        raise UndecodableRecord(
            f"topic: {_shown(topic)} does not fit the kind {kind} (ce_txkind) and prefix {prefix!r}"
        )
    return logical


def _payload(value: bytes | None) -> str:
    if value is None:
        raise UndecodableRecord("value: there is none (a tombstone)")
    if len(value) > MAX_PAYLOAD_BYTES:
        raise UndecodableRecord(f"value: {len(value)} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    text = _text("value", value)
    try:
        # Also refuses JSON nested deeper than 200 levels.
        parsed = from_json(value, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise UndecodableRecord(f"value: is not JSON ({error})") from error
    if "\\u0000" in text or _may_be_infinite(value):
        _refuse_unstorable(parsed)
    return text


def _may_be_infinite(value: bytes) -> bool:
    """Whether JSON may contain a number from about 1.8e308 on, which is read as infinity.

    Such numbers have an exponent of three digits, or hundreds of digits.
    """
    shape = value.translate(_SHAPE, b"+")
    return b"0e000" in shape or _MANY_DIGITS in shape


def _refuse_unstorable(value: Any) -> None:
    """Refuse JSON values that PostgreSQL cannot store or a later writer cannot write."""
    if isinstance(value, str) and "\x00" in value:
        raise UndecodableRecord("value: holds a NUL character, which PostgreSQL cannot store")
    if isinstance(value, float) and math.isinf(value):
        raise UndecodableRecord("value: holds a number beyond the range of a double")
    if isinstance(value, dict):
        for name, member in value.items():
            _refuse_unstorable(name)
            _refuse_unstorable(member)
    elif isinstance(value, list):
        for member in value:
            _refuse_unstorable(member)


def _length(text: str) -> str:
    """Return the length of a foreign value, for an error that must not quote the value."""
    return f"({len(text)} character{'' if len(text) == 1 else 's'})"


def _shown(text: str) -> str:
    """Return a foreign name in a form that is safe in a log line."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
