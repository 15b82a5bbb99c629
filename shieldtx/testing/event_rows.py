"""The rows of events that wait or have failed, in all databases of a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final
from uuid import UUID

from shieldtx.app.application import ShieldTx
from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.tracing import KnownRow
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord
from shieldtx.testing.outcome import EventRow

_MANY: Final = 1_000
"""No test has more failures."""


def waiting_in(shields: Sequence[ShieldTx]) -> list[EventRow]:
    """Return the rows without an outcome."""
    return [
        _waiting(row, shield.settings.source)
        for shield in shields
        for row in shield.stores.trace().unsettled()
    ]


def failures_in(shields: Sequence[ShieldTx]) -> Iterator[EventRow]:
    """Yield the rows that are FAILED, DEAD or UNRESOLVED, and the parked records."""
    for shield in shields:
        letters, source = shield.stores.dead_letters(), shield.settings.source
        for status in (None, OutboxStatus.UNRESOLVED):
            for letter in letters.latest(limit=_MANY, status=status):
                yield _failed(letter, source)
        for parked in letters.parked(limit=_MANY, values=False):
            yield _parked(parked, source)


def given_up_in(shield: ShieldTx, chosen: AbstractSet[tuple[UUID, str, str]]) -> Iterator[EventRow]:
    """Yield the rows that are MAX_RECONSUMED, of these ids, sources of events, and groups."""
    for letter in shield.stores.dead_letters().given_up(limit=_MANY):
        if (letter.envelope.id, letter.envelope.source, letter.group) in chosen:
            yield _failed(letter, shield.settings.source)


def _waiting(row: KnownRow, source: str) -> EventRow:
    return EventRow(
        source=source,
        group=row.group,
        event_id=row.identity.event_id,
        type=row.identity.type,
        kind=row.identity.kind,
        status=row.status,
        attempts=row.attempts,
        due_at=row.due_at,
        reason=row.reason,
    )


def _failed(letter: DeadLetter, source: str) -> EventRow:
    return EventRow(
        source=source,
        group=letter.group,
        event_id=letter.envelope.id,
        type=letter.envelope.type,
        kind=letter.envelope.kind,
        status=letter.status,
        attempts=letter.attempts,
        due_at=None,
        reason=letter.reason,
    )


def _parked(parked: ParkedRecord, source: str) -> EventRow:
    record = parked.record
    return EventRow(
        source=source,
        group=parked.group,
        event_id=None,
        type=record.topic,
        kind=None,
        status=None,
        attempts=0,
        due_at=None,
        reason=f"offset {record.offset} of partition {record.partition}: {parked.reason}",
    )
