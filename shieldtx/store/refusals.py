"""What is wrong with an event, by the constraint that its INSERT violated."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import IntegrityError

from shieldtx.domain.events import Envelope
from shieldtx.errors import EventRefused


def refusal_of(error: IntegrityError, envelopes: Sequence[Envelope]) -> EventRefused | None:
    """Say which field of the events was written before; None for any other violation."""
    # PostgreSQL names the index, SQLite the columns.
    said = str(error.orig)
    if "shield_outbox_biz_key_key" in said or "shield_outbox.biz_key" in said:
        keys = sorted({f"{e.type} {e.biz_key}" for e in envelopes if e.biz_key is not None})
        return EventRefused(
            "biz_key",
            f"one of {', '.join(keys)} was written before; a business key is for event types "
            "that happen once per object (leave it out for the others)",
        )
    if "shield_outbox_pkey" in said or "shield_outbox.event_id" in said:
        ids = ", ".join(str(e.id) for e in envelopes)
        return EventRefused("id", f"one of {ids} was written before; make an Event for each")
    return None
