"""Fields of log records that name an event: the same keys wherever one is logged."""

from __future__ import annotations

from shieldtx.domain.events import Envelope


def event_fields(envelope: Envelope) -> dict[str, object]:
    """Return the fields that name an event, without its payload, key and headers."""
    return {
        "event_id": str(envelope.id),
        "event_type": envelope.type,
        "kind": str(envelope.kind),
    }


def cause_fields(envelope: Envelope) -> dict[str, object]:
    """Return the fields that name the event which a rollback takes back."""
    return {
        "causation_id": None if envelope.causation_id is None else str(envelope.causation_id),
        "causation_source": envelope.causation_source,
    }
