"""Refusals of parked events by an operator: each ends with its rollback event."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from shieldtx.domain.events import Envelope, storable
from shieldtx.domain.states import InboxStatus
from shieldtx.store.dead_letter_rows import DeadLetter
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import audit
from shieldtx.store.statements import dead_letters as letters_sql
from shieldtx.store.statements import refusals as sql
from shieldtx.store.tables import Tables

AddRollback: TypeAlias = Callable[[Session, Envelope], None]
"""Adds the rollback event that takes an event back, in the transaction of the session."""

REFUSED: Final = InboxStatus.MAX_RECONSUMED


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The result of a refusal of one event."""

    letter: DeadLetter
    """The event as the operator saw it."""
    done: bool
    status: str | None
    """The present status; None if the row is gone."""


class SqlRefusals:
    """Refuses parked events for an operator, each with an audit entry."""

    def __init__(self, engine: Engine, tables: Tables, *, add_rollback: AddRollback) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._add_rollback = add_rollback

    def refuse(self, letters: Sequence[DeadLetter], *, who: str, reason: str) -> Sequence[Refusal]:
        """Refuse the events that are still DEAD, in one transaction; leave the others.

        Each row becomes MAX_RECONSUMED in the transaction of its rollback event, as if its handler
        had refused the event.
        """
        # In a fixed order, so that two operators never wait for each other.
        in_order = sorted(letters, key=str)
        with Session(self._engine) as session, session.begin():
            return [self._refuse(session, letter, who, reason) for letter in in_order]

    def _refuse(self, session: Session, letter: DeadLetter, who: str, reason: str) -> Refusal:
        t, d, connection = self._tables, self._dialect, session.connection()
        event = letter.envelope
        row: dict[str, Any] = {
            "group": letter.group,
            "event_id": event.id,
            "source": event.source,
        }
        if connection.execute(sql.refuse(t, d, **row, reason=reason)).one_or_none() is None:
            status = connection.scalar(letters_sql.inbox_status(t, **row))
            return Refusal(letter=letter, done=False, status=status)
        self._add_rollback(session, event)
        detail = {
            "from": letter.status,
            "to": REFUSED,
            "event_type": event.type,
            "source": event.source,
            "attempts": letter.attempts,
            "reason": letter.reason,
            "refusal_reason": storable(reason),
        }
        note = audit.record(
            t,
            d,
            who=who,
            action="refuse",
            subject=str(letter),
            detail=json.dumps(detail, ensure_ascii=False),
        )
        connection.execute(note)
        return Refusal(letter=letter, done=True, status=REFUSED.value)
