"""The port DelayedStore over SQLAlchemy, on connections of the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Update

from shieldtx.domain.events import storable
from shieldtx.domain.payloads import text_problem
from shieldtx.domain.schedule import Due
from shieldtx.domain.states import OutboxStatus
from shieldtx.errors import EventRefused
from shieldtx.ports.delayed_events import BizKey, Change, ChangeResult, DelayedEvent, EventRef
from shieldtx.store.dialects import Dialect, dialect_of
from shieldtx.store.statements import audit
from shieldtx.store.statements import delayed_events as sql
from shieldtx.store.tables import Tables

_TOO_LATE = {
    OutboxStatus.PROCESSING: ChangeResult.CLAIMED,
    OutboxStatus.PROCESSED: ChangeResult.PUBLISHED,
    OutboxStatus.DISCARDED: ChangeResult.CANCELLED,
    OutboxStatus.FAILED: ChangeResult.FAILED,
}


class SqlDelayedEventStore:
    """Lists, cancels and reschedules delayed events; the audit log records the user."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def waiting(
        self,
        connection: Connection,
        *,
        limit: int,
        event_type: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        biz_key: str | None = None,
    ) -> Sequence[DelayedEvent]:
        """Return up to `limit` delayed events, the next due first."""
        dialect = dialect_of(connection.dialect)
        statement = sql.waiting(
            self._tables,
            dialect,
            limit=limit,
            event_type=event_type,
            topic=topic,
            key=key,
            biz_key=biz_key,
        )
        return [_event(row) for row in connection.execute(statement)]

    def cancel(
        self, connection: Connection, event: EventRef, *, who: str, reason: str | None = None
    ) -> Change:
        """Discard an event that is not due yet; the audit log keeps the reason."""
        statement = partial(sql.cancel, self._tables)
        target = OutboxStatus.DISCARDED
        return self._change(
            connection, event, statement, to=target, action="cancel", who=who, reason=reason
        )

    def reschedule(self, connection: Connection, event: EventRef, due: Due, *, who: str) -> Change:
        """Change the due time of an event that is not due yet."""
        statement = partial(sql.reschedule, self._tables, due=due)
        target = OutboxStatus.INIT
        return self._change(connection, event, statement, to=target, action="reschedule", who=who)

    def _change(
        self,
        connection: Connection,
        event: EventRef,
        statement: Callable[[Dialect, UUID], Update],
        *,
        to: OutboxStatus,
        action: str,
        who: str,
        reason: str | None = None,
    ) -> Change:
        """Lock the row, check that it still waits for its time, and only then change it."""
        event = _reference_of(event)
        dialect = dialect_of(connection.dialect)
        with connection.begin_nested() as look:
            row = connection.execute(sql.standing(self._tables, dialect, event)).one_or_none()
            result = ChangeResult.UNKNOWN if row is None else _result_of(row)
            if result is not ChangeResult.DONE:
                # A relay's claim would wait for the lock until the caller's transaction ends.
                look.rollback()
        if row is None:
            return Change(result=ChangeResult.UNKNOWN)
        if result is not ChangeResult.DONE:
            return Change(
                result=result,
                event_id=row.event_id,
                status=OutboxStatus(row.status),
                due_at=row.due_at,
            )
        changed = connection.execute(statement(dialect, row.event_id)).one_or_none()
        if changed is None:
            # Without row locks, a relay was faster. The relay has the row now, so this ends.
            return self._change(
                connection, event, statement, to=to, action=action, who=who, reason=reason
            )
        connection.execute(
            audit.record(
                self._tables,
                dialect,
                who=who,
                action=action,
                subject=f"event {row.event_id} in the outbox",
                detail=json.dumps(
                    _detail(row, to, changed.due_at)
                    | ({} if reason is None else {"discard_reason": storable(reason)}),
                    ensure_ascii=False,
                ),
            )
        )
        return Change(
            result=ChangeResult.DONE, event_id=row.event_id, status=to, due_at=changed.due_at
        )


def _reference_of(event: object) -> EventRef:
    """Return the reference of an event as the outbox has it; an id may be a text.

    Raises EventRefused for what cannot name an event: PostgreSQL would refuse the comparison and
    abort the caller's transaction, and SQLite would find no event.
    """
    if isinstance(event, UUID):
        return event
    if isinstance(event, BizKey):
        for name, text in event._asdict().items():
            if problem := text_problem(text):
                raise EventRefused(name, problem)
        return event
    try:
        return UUID(event if isinstance(event, str) else None)
    except (TypeError, ValueError):
        given = repr(event) if isinstance(event, str) else type(event).__name__
        raise EventRefused(
            "event", f"must be the id of an event or a BizKey, not {given}"
        ) from None


def _result_of(row: Row[*tuple[Any, ...]]) -> ChangeResult:
    """Return whether a row can be changed (DONE), or why not."""
    status = OutboxStatus(row.status)
    if status is not OutboxStatus.INIT:
        return _TOO_LATE.get(status, ChangeResult.NOT_DELAYED)
    if not row.delayed:
        return ChangeResult.NOT_DELAYED
    if row.due:
        return ChangeResult.DUE
    return ChangeResult.UNCONFIRMED if row.unconfirmed else ChangeResult.DONE


def _detail(row: Row[*tuple[Any, ...]], to: OutboxStatus, due_at: datetime) -> dict[str, Any]:
    return {
        "from": row.status,
        "to": to,
        "event_type": row.event_type,
        "biz_key": row.biz_key,
        "due_at": row.due_at.isoformat(),
        "due_at_now": due_at.isoformat(),
    }


def _event(row: Row[*tuple[Any, ...]]) -> DelayedEvent:
    return DelayedEvent(
        event_id=row.event_id,
        event_type=row.event_type,
        topic=row.topic,
        key=row.key,
        biz_key=row.biz_key,
        created_at=row.created_at,
        due_at=row.due_at,
        attempts=row.attempts,
        left=timedelta(seconds=row.left),
    )
