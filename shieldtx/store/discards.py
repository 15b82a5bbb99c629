"""Discards of FAILED events, DEAD rows of the inbox and parked records.

A discard is final: nothing more happens, and nothing is undone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Engine

from shieldtx.domain.events import storable
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord, Status
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import audit
from shieldtx.store.statements import dead_letters as letters_sql
from shieldtx.store.statements import discards as sql
from shieldtx.store.statements.discards import PARKED
from shieldtx.store.tables import Tables

DISCARD: Final[dict[Status, Status]] = {
    OutboxStatus.FAILED: OutboxStatus.DISCARDED,
    InboxStatus.DEAD: InboxStatus.DISCARDED,
}
"""The states from which an operator may discard, and the states afterwards."""

DISCARDED: Final = InboxStatus.DISCARDED.value

__all__ = [
    "DISCARD",
    "DISCARDED",
    "PARKED",
    "Discard",
    "Discardable",
    "SqlDiscards",
    "consequence_of",
]

Discardable: TypeAlias = DeadLetter | ParkedRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Discard:
    """The result of a discard of one row."""

    row: Discardable
    """The row as the operator saw it."""
    done: bool
    status: str | None
    """The present status; None if the row is gone."""


class SqlDiscards:
    """Discards rows for an operator, each with an audit entry."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)

    def discard(self, rows: Sequence[Discardable], *, who: str, reason: str) -> Sequence[Discard]:
        """Discard the rows that still wait for an operator, in one transaction; keep the others."""
        # In a fixed order, so that two operators never wait for each other.
        in_order = sorted(rows, key=str)
        with self._engine.begin() as connection:
            return [self._discard(connection, row, who, reason) for row in in_order]

    def _discard(self, connection: Connection, row: Discardable, who: str, why: str) -> Discard:
        statement, status = self._statements(row)
        if connection.execute(statement).one_or_none() is None:
            return Discard(row=row, done=False, status=connection.scalar(status))
        detail = _detail_of(row) | {
            "discard_reason": storable(why),
            "consequence": consequence_of(row),
        }
        note = audit.record(
            self._tables,
            self._dialect,
            who=who,
            action="discard",
            subject=str(row),
            detail=json.dumps(detail, ensure_ascii=False),
        )
        connection.execute(note)
        return Discard(row=row, done=True, status=DISCARDED)

    def _statements(self, row: Discardable) -> tuple[Any, Any]:
        """Return the UPDATE of a row, and the SELECT of its status."""
        t, d = self._tables, self._dialect
        if isinstance(row, ParkedRecord):
            which: dict[str, Any] = {
                "group": row.group,
                "record": row.record,
                "digest": row.digest,
            }
            return sql.discard_record(t, d, **which), sql.parked_status(t, **which)
        event_id, source = row.envelope.id, row.envelope.source
        if row.group is None:
            return sql.discard_event(t, d, event_id), letters_sql.outbox_status(t, event_id)
        received: dict[str, Any] = {"group": row.group, "event_id": event_id, "source": source}
        return sql.discard_received(t, d, **received), letters_sql.inbox_status(t, **received)


def consequence_of(row: Discardable) -> str:
    """Return the consequence of a discard, which nothing can revert."""
    if isinstance(row, ParkedRecord):
        return f"group {row.group} will never handle it"
    event = row.envelope
    if row.group is not None and event.kind is TxKind.COMMIT:
        return (
            f"it has no effect in group {row.group}, and its service {event.source} gets no "
            "rollback event and does not compensate; `shieldtx dead refuse` writes that event"
        )
    undone = f"event {event.causation_id} of {event.causation_source or 'this service'}"
    if row.group is not None:
        return f"the effect of {undone} stays: group {row.group} never compensates it"
    doubt = ", unless the attempt that was never confirmed delivered it" if row.unconfirmed else ""
    if event.kind is TxKind.ROLLBACK:
        return f"the effect of {undone} stays: its service never learns of this rollback{doubt}"
    local = (
        "its local rollback was withheld, and what the service wrote with it stays"
        if row.unconfirmed
        else "its local rollback, if it has one, has run already"
    )
    return f"no consumer receives the event{doubt}; {local}"


def _detail_of(row: Discardable) -> dict[str, Any]:
    if isinstance(row, ParkedRecord):
        record = row.record
        return {
            "from": PARKED,
            "to": DISCARDED,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "reason": row.reason,
        }
    return {
        "from": row.status,
        "to": DISCARDED,
        "event_type": row.envelope.type,
        "kind": row.envelope.kind,
        "source": row.envelope.source,
        "causation_id": str(row.envelope.causation_id or ""),
        "attempts": row.attempts,
        "reason": row.reason,
    }
