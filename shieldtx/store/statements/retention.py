"""The statements that purge expired rows, along the primary key."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Select,
    String,
    Table,
    and_,
    delete,
    exists,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
)

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.retention import NOTED_AHEAD
from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


def end_of_batch(table: Table, *, after: UUID, upto: UUID, limit: int) -> Select[Any]:
    """Select the id of the last of the next `limit` rows; no row if there are fewer."""
    event_id = table.c.event_id
    return (
        select(event_id)
        .where(event_id > after, event_id <= upto)
        .order_by(event_id)
        .offset(limit - 1)
        .limit(1)
    )


def purge(
    table: Table,
    d: Dialect,
    *,
    status: Collection[str],
    older_than: timedelta,
    after: UUID,
    upto: UUID,
    limit: int,
    needed: ColumnElement[bool],
) -> Delete:
    """Remove the settled rows of a batch that are old and not needed, except locked rows."""
    event_id, key = table.c.event_id, list(table.primary_key.columns)
    old = (
        select(*key)
        .where(
            event_id > after,
            event_id <= upto,
            table.c.status.in_(sorted(status)),
            table.c.settled_at < d.later(-older_than),
            not_(needed),
        )
        .order_by(event_id)
        # There are no more rows, but the planner cannot know that.
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete(table).where(tuple_(*key).in_(old))


def note_purged(t: Tables, d: Dialect, *, purged_table: str, older_than: timedelta) -> Insert:
    """Record that rows settled before `older_than` are gone, unless this is already recorded.

    The recorded time is ahead by `NOTED_AHEAD`, so that most batches find it and lock nothing. A
    purge that writes the time blocks other purges that write it until its commit.
    """
    p, purged_until = t.purged, d.later(-older_than)
    is_known = exists().where(p.c.purged_table == purged_table, p.c.purged_until >= purged_until)
    found = select(
        literal(purged_table, String()).label("purged_table"),
        d.later(NOTED_AHEAD - older_than).label("purged_until"),
    ).where(not_(is_known))
    statement = d.upsert(p).from_select(["purged_table", "purged_until"], found)
    excluded = statement.excluded.purged_until
    return statement.on_conflict_do_update(
        index_elements=[p.c.purged_table],
        set_={"purged_until": excluded},
        where=p.c.purged_until < excluded,
    )


def purged_until(t: Tables) -> Select[Any]:
    """Select the later time up to which outbox or inbox was purged; NULL if neither was."""
    return select(func.max(t.purged.c.purged_until, type_=t.purged.c.purged_until.type))


# Literals, as in the partial indexes: the planner has to see the values in every plan.
_COMMIT = literal(TxKind.COMMIT.value, literal_execute=True)
_ROLLBACK = literal(TxKind.ROLLBACK.value, literal_execute=True)


def is_needed_in_outbox(t: Tables) -> ColumnElement[bool]:
    """Whether an open or DEAD rollback takes the event back, for which it needs the payload."""
    return _may_be_taken_back(t, t.outbox.c.event_id)


def is_needed_in_inbox(t: Tables) -> ColumnElement[bool]:
    """Whether a later compensation may need the row, which is so in three cases.

    - A rollback of its event is open or DEAD. It needs the event, or the record that another
      rollback has compensated the event already.
    - The outbox has an event that this row's handler wrote. When that event is taken back, this
      row's event is taken back next; if this row is a rollback, the chain ends. Without the row,
      neither is known.
    - The row records a compensation, and another rollback of the compensated event may follow.
    """
    i, o, received = t.inbox, t.outbox, t.inbox.alias("received")
    caused = _is_there(
        o.c.tx_kind == _COMMIT,
        o.c.causation_id == i.c.event_id,
        o.c.causation_source == i.c.source,
    )
    can_be_compensated = or_(
        _is_there(o.c.event_id == i.c.compensated_id),
        _is_there(
            received.c.event_id == i.c.compensated_id,
            received.c.consumer_group == i.c.consumer_group,
            received.c.tx_kind == _COMMIT,
        ),
    )
    return or_(
        _may_be_taken_back(t, i.c.event_id, of=i.c.consumer_group),
        caused,
        and_(
            i.c.compensated_id.is_not(None),
            or_(
                can_be_compensated, _may_be_taken_back(t, i.c.compensated_id, of=i.c.consumer_group)
            ),
        ),
    )


def _may_be_taken_back(
    t: Tables, event_id: ColumnElement[UUID], *, of: ColumnElement[str] | None = None
) -> ColumnElement[bool]:
    """Whether a rollback of the event, received by the group `of` or by any, is open or DEAD."""
    rollback = t.inbox.alias("awaited")
    its_group = rollback.c.consumer_group
    return _is_there(
        rollback.c.tx_kind == _ROLLBACK,
        rollback.c.causation_id == event_id,
        or_(rollback.c.settled_at.is_(None), rollback.c.status == InboxStatus.DEAD.value),
        its_group == (its_group if of is None else of),
    )


def _is_there(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a matching row exists, by an index probe for each row.

    OFFSET prevents PostgreSQL from reading the whole table into a hash instead.
    """
    return exists(select(literal_column("1")).where(*conditions).offset(0))
