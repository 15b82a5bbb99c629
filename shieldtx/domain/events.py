"""Events as applications write and read them, and envelopes as they are stored and sent."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple
from uuid import UUID

from typing_extensions import TypeVar
from uuid_utils.compat import uuid7

from shieldtx.domain.external_ids import EXTERNAL_CAUSATION_ID, EXTERNAL_ID
from shieldtx.domain.states import Operation, TxKind

LONGEST_REASON = 2000
"""The maximum length of a stored error message, in characters."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_EXTERNAL = frozenset({EXTERNAL_ID, EXTERNAL_CAUSATION_ID})

P_co = TypeVar("P_co", covariant=True, default=Any)
"""The type of a payload. Plain `Event` is `Event[Any]`, also for a strict type checker."""


def new_event_id() -> UUID:
    """Return a new UUIDv7 (RFC 9562): unique without a database, and increasing over time."""
    return uuid7()


def first_id_of(moment: float) -> UUID:
    """Return the smallest id made at a Unix time in seconds: 48 bits of milliseconds lead."""
    return UUID(int=max(0, int(moment * 1000)) << 80)


def age_of(event_id: UUID, now: float) -> timedelta | None:
    """Return how long before `now` (Unix time in seconds) an id was made; None: not a UUIDv7."""
    if event_id.version != 7:  # noqa: PLR2004  the version is its name
        return None
    return timedelta(seconds=now - (event_id.int >> 80) / 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Generic[P_co]):
    """Something that happened in a service, as its code writes it and as handlers receive it.

    `key` keeps order: events of one key and one topic are published and handled in the order in
    which they were committed. Each event type has a topic of its own by default. `biz_key` names
    the business object of an event type that happens once per object: while the row of an event is
    kept, the commit of a second event with its type and business key is refused. The outbox fills
    in `source` and `time`.

    `Event[Booking]` has a payload of type `Booking`, for type checkers.
    """

    type: str
    payload: P_co = None  # type: ignore[assignment]  # an event without a payload is Event[None]
    key: str | None = None
    biz_key: str | None = None
    operation: Operation = Operation.INSERT
    kind: TxKind = TxKind.COMMIT
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    id: UUID = field(default_factory=new_event_id)
    source: str = ""
    time: datetime | None = None
    causation_id: UUID | None = None
    """For a rollback: the event that it takes back. For other events: the event whose handler wrote
    it."""
    causation_source: str | None = None
    """The `source` of that event. shieldtx fills it in where a handler of the event adds this
    one."""
    traceparent: str | None = None
    """The W3C trace context of the code that wrote the event."""
    dataschema: str | None = None
    """The URI of the schema that the payload was written with. The outbox fills it in, and
    upcasters do not change it."""
    attempt: int = field(default=0, compare=False)
    """In a handler, the number of this attempt, 1 for the first; shieldtx fills it in."""
    max_attempts: int = field(default=0, compare=False)
    """In a handler, the number of its last attempt, after which shieldtx gives up."""
    external_id: str | None = field(default=None, compare=False)
    """In a handler, the id as its producer wrote it, where that is not a UUID: `id` then is the
    UUIDv5 of it. None: `id` is the producer's."""
    reason: str | None = field(default=None, compare=False)
    """In a compensation, the error for which the consumer gave the event up, as `Refused: sold
    out`, up to 500 characters. None where the rollback event names none."""

    if not TYPE_CHECKING:
        # An alias of typing would set an attribute of each `Event[Booking](...)`, which is frozen.
        __class_getitem__ = classmethod(GenericAlias)


class Envelope(NamedTuple):
    """An event with its payload as JSON text, as the tables and the records contain it."""

    # A tuple, as every object made for each row and record: a frozen dataclass of as many fields
    # takes ten times as long to make.

    id: UUID
    type: str
    source: str
    topic: str
    """The logical topic, without prefix and without the suffix of the kind."""
    payload: str
    time: datetime
    kind: TxKind = TxKind.COMMIT
    operation: Operation = Operation.INSERT
    key: str | None = None
    biz_key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS
    causation_id: UUID | None = None
    causation_source: str | None = None
    traceparent: str | None = None
    dataschema: str | None = None
    """The URI of the payload's schema; None: no version was declared."""

    def evolve(self, **changes: Any) -> Envelope:
        """Return a copy with some fields changed."""
        return self._replace(**changes)

    def opened(self, payload: Any, *, attempt: int = 0, max_attempts: int = 0) -> Event:
        """Return the event for a handler, with its decoded `payload`."""
        headers = self.headers
        external_id = headers.get(EXTERNAL_ID) if headers else None
        if external_id is not None or (headers and EXTERNAL_CAUSATION_ID in headers):
            headers = {k: v for k, v in headers.items() if k not in _EXTERNAL}
        return Event(
            type=self.type,
            payload=payload,
            key=self.key,
            biz_key=self.biz_key,
            operation=self.operation,
            kind=self.kind,
            headers=headers,
            id=self.id,
            source=self.source,
            time=self.time,
            causation_id=self.causation_id,
            causation_source=self.causation_source,
            traceparent=self.traceparent,
            dataschema=self.dataschema,
            attempt=attempt,
            max_attempts=max_attempts,
            external_id=external_id,
        )


_FOREIGN = "foreign:"
"""Begins the logical name of a foreign topic: no other name of a topic has a colon."""


def foreign_topic(name: str) -> str:
    """Return the logical name of a topic that other software than shieldtx writes."""
    return f"{_FOREIGN}{name}"


def is_foreign(topic: str) -> bool:
    """Whether the logical name of a topic is that of a foreign topic."""
    return topic.startswith(_FOREIGN)


def physical_topic(prefix: str, topic: str, kind: TxKind) -> str:
    """Return the broker's name of a logical topic: `<prefix><topic>.commit` or `.rollback`.

    A foreign topic has its own name, without prefix and without the suffix of the kind.
    """
    if topic.startswith(_FOREIGN):
        return topic.removeprefix(_FOREIGN)
    return f"{prefix}{topic}.{kind.lower()}"


def logical_topic(prefix: str, name: str) -> str | None:
    """Return the logical topic of a broker's name of a topic; None for any other name."""
    for kind in TxKind:
        logical = name.removeprefix(prefix).removesuffix(f".{kind.lower()}")
        if logical and physical_topic(prefix, logical, kind) == name:
            return logical
    return None


def shard_of(key: str | None, event_id: UUID, shards: int) -> int:
    """Return the shard (0 to `shards` - 1) of a key; an event without a key spreads by its id."""
    return zlib.crc32(key.encode() if key is not None else event_id.bytes) % shards


def reason_of_rollback(rollback: Envelope) -> str | None:
    """Return why a rollback event was written; None if it names no reason as `rollback_of` does."""
    payload = json.loads(rollback.payload)
    reason = payload.get("reason") if isinstance(payload, dict) else None
    return storable(reason, LONGEST_ON_THE_WIRE) if isinstance(reason, str) else None


def storable(text: str, limit: int = LONGEST_REASON) -> str:
    """Return up to `limit` characters of a foreign text, such as an error's, for a table.

    Characters that PostgreSQL or UTF-8 cannot store (NUL, lone surrogates) are replaced.
    """
    return text[:limit].replace("\x00", "\ufffd").encode(errors="replace").decode()


LONGEST_ON_THE_WIRE = 500
"""The maximum length of the reason that a rollback event carries upstream, in characters."""


def rollback_of(
    original: Envelope, *, source: str, reason: str, event_id: UUID | None = None
) -> Envelope:
    """Return the event of `source` that takes `original` back: same type, topic and key.

    It names the id that the producer of `original` knows. Into a foreign topic nothing is written:
    the event goes to the topic of its type.
    """
    external_id = original.headers.get(EXTERNAL_ID)
    return Envelope(
        id=event_id or new_event_id(),
        type=original.type,
        source=source,
        topic=original.type if is_foreign(original.topic) else original.topic,
        payload=json.dumps({"reason": storable(reason, LONGEST_ON_THE_WIRE)}, ensure_ascii=False),
        # The row contains the database's time instead.
        time=datetime.now(UTC),
        kind=TxKind.ROLLBACK,
        operation=original.operation,
        key=original.key,
        biz_key=original.biz_key,
        headers=NO_HEADERS if external_id is None else {EXTERNAL_CAUSATION_ID: external_id},
        causation_id=original.id,
        causation_source=original.source,
        traceparent=original.traceparent,
    )
