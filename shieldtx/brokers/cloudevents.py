"""Envelopes as records: CloudEvents 1.0, Kafka protocol binding, binary mode.

The record's key is the event's key, its value the payload as JSON, and each attribute is a header.
The user's headers of an event keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from uuid import UUID

from shieldtx.domain.events import Envelope, is_foreign, physical_topic
from shieldtx.domain.external_ids import EXTERNAL_CAUSATION_ID, EXTERNAL_ID, event_id_of
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import EventRefused
from shieldtx.ports.broker import Record

SPEC_VERSION: Final = "1.0"
CONTENT_TYPE: Final = "application/json"

MAX_HEADERS: Final = 256
"""Maximum headers of one record, shieldtx's own included."""
MAX_HEADER_BYTES: Final = 65_536
"""Maximum bytes of names and values of all headers of one record."""
MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
MAX_NAME_BYTES: Final = 256
"""Maximum bytes of a source or an event type."""
MAX_SCHEMA_BYTES: Final = 2_048
"""Maximum bytes of the URI of a payload's schema."""
MAX_KEY_BYTES: Final = 1_024
"""Maximum bytes of a key or a business key.

Together with the names in an inbox index, a key stays below the 2,704 bytes of a B-tree entry in
PostgreSQL.
"""

RESERVED: Final = ("ce_", "content-")
CONSTANT_HEADERS: Final = 6

_EXTERNAL: Final = frozenset({EXTERNAL_ID, EXTERNAL_CAUSATION_ID})
"""The ids of other producers, which the stored headers contain."""


def encode(envelope: Envelope, prefix: str) -> Record:
    """Return the record that carries `envelope`.

    The stored ids of other producers replace the UUIDs that shieldtx has for them. Raises
    EventRefused for a time without a zone, for a user's header with a reserved name, for a stored
    id that is not that of the row, and for a foreign topic, into which shieldtx never writes.
    """
    # Every event of every relay passes here: fields are read once, and values that many events
    # share are computed once.
    event_id, type_, source, topic, payload, time, kind, operation, key, biz_key = envelope[:10]
    users, causation_id, causation_source, traceparent, dataschema = envelope[10:]
    headers = [
        *_constant_headers(type_, source, kind, operation),
        ("ce_id", _id(users, EXTERNAL_ID, source, event_id)),
        ("ce_time", in_utc(time).isoformat().encode()),
    ]
    key_bytes = None if key is None else key.encode()
    # For readers of CloudEvents; shieldtx reads the two extensions. It may not be empty.
    if subject := biz_key or key:
        headers.append(("ce_subject", subject.encode()))
    if key_bytes is not None:
        headers.append(("ce_partitionkey", key_bytes))
    if biz_key is not None:
        headers.append(("ce_bizkey", biz_key.encode()))
    if causation_id is not None:
        cause = _id(users, EXTERNAL_CAUSATION_ID, causation_source, causation_id)
        headers.append(("ce_causationid", cause))
    if causation_source is not None:
        headers.append(("ce_causationsource", causation_source.encode()))
    if traceparent is not None:
        headers.append(("ce_traceparent", traceparent.encode()))
    if dataschema is not None:
        headers.append(("ce_dataschema", dataschema.encode()))
    for header, value in users.items():
        if is_reserved(header):
            _require_external(header)
        else:
            headers.append((header, value.encode()))
    return Record(_topic(prefix, topic, kind), key_bytes, payload.encode(), tuple(headers))


@lru_cache(maxsize=4096)
def _constant_headers(
    event_type: str, source: str, kind: TxKind, operation: Operation
) -> tuple[tuple[str, bytes], ...]:
    return (
        ("content-type", CONTENT_TYPE.encode()),
        ("ce_specversion", SPEC_VERSION.encode()),
        ("ce_type", event_type.encode()),
        ("ce_source", source.encode()),
        ("ce_txkind", kind.encode()),
        ("ce_operation", operation.encode()),
    )


def _id(users: Mapping[str, str], name: str, source: str | None, event_id: UUID) -> bytes:
    """Return an id as its producer wrote it; raises EventRefused if a header has another one."""
    if (text := users.get(name)) is None:
        return str(event_id).encode()
    if source is None or event_id_of(source, text) != event_id:
        raise EventRefused(f"headers[{name!r}]", "has another id than the row")
    return text.encode()


def _require_external(header: str) -> None:
    if header not in _EXTERNAL:
        raise EventRefused(f"headers[{header!r}]", "the name is reserved for shieldtx")


@lru_cache(maxsize=4096)
def _topic(prefix: str, topic: str, kind: TxKind) -> str:
    if is_foreign(topic):
        raise EventRefused("topic", f"{topic} is a foreign topic, into which shieldtx never writes")
    return physical_topic(prefix, topic, kind)


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC; raises EventRefused for a time without a zone."""
    if time.tzinfo is UTC:
        return time
    if time.tzinfo is None:
        raise EventRefused("time", f"{time} has no time zone")
    return time.astimezone(UTC)


def is_reserved(name: str) -> bool:
    """Whether the name of a header is reserved for CloudEvents and the content type."""
    return name.lower().startswith(RESERVED)
