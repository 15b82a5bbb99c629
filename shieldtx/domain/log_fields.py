"""Fields of log records that name events: the same keys wherever one is logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from shieldtx.domain.events import Envelope

MOST_NAMED: Final = 20
"""The maximum number of events that a log record names."""


def event_fields(envelope: Envelope) -> dict[str, object]:
    """Return the fields that name an event, without its payload, key and headers."""
    return {
        "event_id": str(envelope.id),
        "event_type": envelope.type,
        "kind": str(envelope.kind),
    }


def events_fields(envelopes: Sequence[Envelope]) -> dict[str, object]:
    """Return the fields that count events, and name the first of them."""
    return {
        "count": len(envelopes),
        "event_ids": [str(envelope.id) for envelope in envelopes[:MOST_NAMED]],
        "event_types": sorted({envelope.type for envelope in envelopes}),
    }


class RecordPosition(Protocol):
    """The position of a record in Kafka."""

    @property
    def topic(self) -> str:
        """The physical topic."""
        ...

    @property
    def partition(self) -> int:
        """The partition of the topic."""
        ...

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        ...


def record_fields(record: RecordPosition) -> dict[str, object]:
    """Return the fields that name a record, without its key, value and headers."""
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def cause_fields(envelope: Envelope) -> dict[str, object]:
    """Return the fields that name the event which a rollback takes back."""
    return {
        "causation_id": None if envelope.causation_id is None else str(envelope.causation_id),
        "causation_source": envelope.causation_source,
    }
