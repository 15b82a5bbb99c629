"""Records of other services, made for a test, and the events of records on the topics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import cast

from pydantic import SecretStr, TypeAdapter

from shieldtx.app.application import ShieldTx
from shieldtx.brokers import signing
from shieldtx.domain.event_fields import EventLimits, check_fields
from shieldtx.domain.event_types import checked_name
from shieldtx.domain.events import Envelope, Event, rollback_of
from shieldtx.domain.payloads import encode_payload
from shieldtx.domain.schema_versions import dataschema_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError, UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord, Record


def commit_record(
    event: Event, *, topic: str, version: int | None, at: datetime, prefix: str
) -> Record:
    """Return the record of an event that its `source` writes; raises EventRefused."""
    limits = EventLimits()
    check_fields(event, limits)
    envelope = Envelope(
        id=event.id,
        type=checked_name("event type", event.type),
        source=checked_name("source", event.source),
        topic=topic,
        payload=encode_payload(TypeAdapter(type(event.payload)), event.payload, limits.payload),
        time=at,
        key=event.key,
        biz_key=event.biz_key,
        headers=event.headers,
        dataschema=None if version is None else dataschema_of(event.type, version),
    )
    return signing.encode(envelope, prefix)


def rollback_record(
    original: Envelope, *, source: str, reason: str, prefix: str, keys: Sequence[SecretStr]
) -> Record:
    """Return the record by which `source` takes an event back."""
    return signing.encode(rollback_of(original, source=source, reason=reason), prefix, keys)


def foreign_record(
    topic: str, value: bytes | None, *, key: bytes | None, headers: Mapping[str, bytes]
) -> Record:
    """Return the record of another producer; the broker in memory also takes a tombstone.

    Raises ConfigurationError for a value, a key or a header that is no bytes.
    """
    parts: dict[str, object] = {f"header {name}": text for name, text in headers.items()}
    parts |= {name: part for name, part in (("value", value), ("key", key)) if part is not None}
    for name, part in parts.items():
        if not isinstance(part, bytes):
            raise ConfigurationError(f"{name} of the record must be bytes, not {part!r}")
    return Record(topic, key, cast("bytes", value), tuple(headers.items()))


def events_of(records: Iterable[ReceivedRecord], shields: Sequence[ShieldTx]) -> Iterator[Event]:
    """Yield the events of records, with payloads of the types that the services declare.

    Records that are not events are left out: a consumer parks them.
    """
    prefix = shields[0].settings.topic_prefix
    for record in records:
        try:
            envelope = signing.decode(record, prefix)
        except UndecodableRecord:
            continue
        yield _opened(envelope, shields)


def _opened(envelope: Envelope, shields: Sequence[ShieldTx]) -> Event:
    for shield in shields:
        is_own = envelope.source == shield.settings.source and envelope.kind is TxKind.COMMIT
        if is_own and shield.event_types.find(envelope.type) is not None:
            return envelope.opened(shield.event_types.read(envelope))
    return envelope.opened(json.loads(envelope.payload))
