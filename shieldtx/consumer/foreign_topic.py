"""Topics that other software than shieldtx writes, and the events of their records."""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from shieldtx.domain.callables import check_callable, uncalled
from shieldtx.domain.error_groups import reason_with_leaves
from shieldtx.domain.event_fields import EventLimits, check_headers, check_text
from shieldtx.domain.events import NO_HEADERS, Envelope, foreign_topic, storable
from shieldtx.domain.external_ids import EXTERNAL_ID, digest_of, event_id_of, foreign_text, uuid_of
from shieldtx.domain.payloads import encode_payload, payload_type
from shieldtx.domain.raise_site import raise_site_of
from shieldtx.domain.schedule import EARLIEST, LATEST
from shieldtx.domain.states import Operation
from shieldtx.errors import ConfigurationError, EventRefused, UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LIMITS: Final = EventLimits(payload=16 * 1024 * 1024, key=1_024, biz_key=1_024)
_ID_BYTES: Final = 4_096
_ANY_JSON: Final = payload_type(None, of="a foreign topic")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignEvent:
    """The event that a record of a foreign topic carries, as its decoder returns it."""

    payload: Any
    """A value that JSON can express."""
    type: str | None = None
    """The event type; None: the only type that the group handles from the topic."""
    id: str | None = None
    """The id of the event in its source: a second record with it is a duplicate. None: topic,
    partition and offset of the record, and a digest of its key and value. A copy at another offset
    is then another event."""
    source: str | None = None
    """Who has written the event; None: the `source` of the topic."""
    key: str | None = None
    """Keeps order; None: the key of the record."""
    biz_key: str | None = None
    """The business object of an event type that happens once per object."""
    time: datetime | None = None
    """When it happened, with a time zone; None: the timestamp of the record."""
    operation: Operation = Operation.INSERT
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True, slots=True)
class ForeignTopic:
    """A topic of other software, under exactly this name, and the decoder of its records.

    shieldtx calls `decode(record)` in the thread that reads the topic. It returns the event, or
    None for a record to leave out. Records without a value (tombstones) reach it too. A record for
    which it raises is parked. `source` is the source of events whose decoder names none; the
    default is `topic:<name>`. Raises ConfigurationError for a bad argument, such as a coroutine
    function.
    """

    name: str
    decode: Callable[[ReceivedRecord], ForeignEvent | None] = field(kw_only=True)
    source: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not _NAME.fullmatch(self.name) or self.name in {".", ".."}:
            raise ConfigurationError(
                f"foreign topic {self.name!r} is not a name of a topic in Kafka: up to 249 of the "
                "characters A-Z a-z 0-9 . _ -"
            )
        check_callable(
            self.decode, what=f"decoder of foreign topic {self.name!r}", call="decode(record)"
        )
        if not self.source:
            object.__setattr__(self, "source", f"topic:{self.name}")
        try:
            check_text("source", self.source, _LIMITS.name)
        except EventRefused as problem:
            raise ConfigurationError(f"foreign topic {self.name!r}: {problem}") from problem

    @property
    def logical_name(self) -> str:
        """The name of the topic in the tables."""
        return foreign_topic(self.name)

    def read(self, record: ReceivedRecord, types: Sequence[str]) -> Envelope | None:
        """Return the event of a record; None where the decoder leaves it out.

        `types` are the event types that the group handles from the topic. Raises UndecodableRecord
        for an error of the decoder, and for an event that cannot be stored.
        """
        try:
            event = self.decode(record)
        except MemoryError:
            raise
        except (Exception, CancelledError) as error:
            site = raise_site_of(error, self.decode)
            reason = storable(reason_with_leaves(error)) + (f" (raised at {site})" if site else "")
            raise UndecodableRecord(f"decode: {reason}") from error
        if event is None:
            return None
        if not isinstance(event, ForeignEvent):
            found = uncalled(event) or f"a {type(event).__name__}"
            raise UndecodableRecord(f"decode: returned {found}, not a ForeignEvent or None")
        try:
            return self._envelope(event, record, types)
        except EventRefused as problem:
            raise UndecodableRecord(f"decode: {problem}") from problem

    def _envelope(
        self, event: ForeignEvent, record: ReceivedRecord, types: Sequence[str]
    ) -> Envelope:
        source = _text("source", event.source, _LIMITS.name) or self.source
        written = _text("id", event.id, _ID_BYTES) or _default_id(record)
        key = _text("key", event.key, _LIMITS.key, may_be_empty=True)
        if key is None and record.key is not None:
            key = _text("key", foreign_text(record.key), _LIMITS.key, may_be_empty=True)
        if not isinstance(event.headers, Mapping):
            raise EventRefused("headers", "must be a mapping of names to texts")
        check_headers(event.headers, _LIMITS)
        if not isinstance(event.operation, Operation):
            raise EventRefused("operation", "must be an Operation")
        is_uuid = uuid_of(written) is not None
        return Envelope(
            id=event_id_of(source, written),
            type=_text("type", event.type, _LIMITS.name) or _only(types),
            source=source,
            topic=self.logical_name,
            payload=encode_payload(_ANY_JSON, event.payload, _LIMITS.payload),
            time=_time(event.time) or record.sent_at or datetime.now(UTC),
            operation=event.operation,
            key=key,
            biz_key=_text("biz_key", event.biz_key, _LIMITS.biz_key, may_be_empty=True),
            headers=event.headers if is_uuid else {**event.headers, EXTERNAL_ID: written},
            traceparent=_trace(record),
        )


def _text(name: str, text: str | None, limit: int, *, may_be_empty: bool = False) -> str | None:
    """Return a checked text; raises EventRefused, which names the field."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise EventRefused(name, f"must be a text, not {type(text).__name__}")
    check_text(name, text, limit)
    if not text and not may_be_empty:
        raise EventRefused(name, "is empty")
    return text


def _default_id(record: ReceivedRecord) -> str:
    """Return an id that is the same each time the record is read, also when it was parked.

    The digest keeps the events of a topic that was recreated: its records have the old offsets. A
    parked record has lost its timestamp, so that the id cannot contain it.
    """
    digest = digest_of(record.key, record.value)
    return f"{record.topic}/{record.partition}/{record.offset}/{digest}"


def _only(types: Sequence[str]) -> str:
    if len(types) != 1:
        raise EventRefused(
            "type", f"the group handles several types of this topic: {', '.join(sorted(types))}"
        )
    return types[0]


def _time(time: Any) -> datetime | None:
    if time is None:
        return None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise EventRefused("time", "must be a datetime with a time zone")
    try:
        utc = time.astimezone(UTC)
    except OverflowError:
        raise EventRefused("time", "is beyond what every time zone can show") from None
    if not EARLIEST <= utc <= LATEST:
        raise EventRefused("time", "is beyond what every time zone can show")
    return utc


def _trace(record: ReceivedRecord) -> str | None:
    """Return the trace context that OpenTelemetry's instrumentations of Kafka clients write."""
    found = dict(record.headers).get("traceparent")
    return found.decode() if found is not None and _TRACEPARENT.fullmatch(found) else None
