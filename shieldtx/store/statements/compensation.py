"""The statements of a compensation: the original event, an earlier compensation, the tombstone."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Select, exists, or_, select, update
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from shieldtx.domain.states import INBOX, InboxStatus, TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.statements.inbox import is_row
from shieldtx.store.tables import Tables


def is_compensated(t: Tables, group: str, original_id: UUID, source: str | None) -> Select[Any]:
    """Select whether the group has compensated an event of a source.

    A rollback without a source takes back an event of this service. The unique key is on the ids
    alone, so a group cannot compensate events of two sources with the same id. The second rollback
    fails and becomes DEAD.
    """
    i = t.inbox
    is_of_source = or_(i.c.causation_source == source, i.c.causation_source.is_(None))
    done = exists().where(i.c.consumer_group == group, i.c.compensated_id == original_id)
    return select(done if source is None else done.where(is_of_source))


def own_original(t: Tables, event_id: UUID, source: str | None) -> Select[Any]:
    """Select a COMMIT event of a source that this service wrote, and protect it from the purge.

    The lock still lets the relay settle the row. A compensation may take long, and a claim that
    waited for the lock would block all shards of the relay.
    """
    o = t.outbox
    return (
        select(*envelope_columns(o, "created_at"))
        .where(o.c.event_id == event_id, o.c.tx_kind == TxKind.COMMIT.value)
        .where(o.c.source == (o.c.source if source is None else source))
        .with_for_update(read=True, key_share=True)
    )


def received_original(t: Tables, group: str, event_id: UUID, source: str) -> Select[Any]:
    """Select a COMMIT event that the group received, with its status, and lock it."""
    i = t.inbox
    return (
        select(*envelope_columns(i, "event_time"), i.c.status)
        .where(is_row(t, group, event_id, source), i.c.tx_kind == TxKind.COMMIT.value)
        .with_for_update()
    )


def received_by_any_group(t: Tables, event_id: UUID, source: str) -> Select[Any]:
    """Select an event or a rollback that any group of this service received."""
    i = t.inbox
    return (
        select(*envelope_columns(i, "event_time"))
        .where(i.c.event_id == event_id, i.c.source == source)
        .limit(1)
    )


@built_once
def fence(t: Tables, d: Dialect) -> ReturningInsert[Any]:
    """Store a tombstone in place of an event whose rollback arrived first."""
    return (
        d.insert_new(t.inbox)
        .values(
            status=InboxStatus.FENCED.value,
            attempts=0,
            due_at=d.now(),
            received_at=d.now(),
            settled_at=d.now(),
        )
        .returning(t.inbox.c.event_id)
    )


def fence_parked(
    t: Tables, d: Dialect, *, group: str, event_id: UUID, source: str
) -> ReturningUpdate[Any]:
    """Settle a DEAD event as FENCED: its rollback has come, and the event has no effect."""
    i = t.inbox
    sources = INBOX.sources_of(InboxStatus.FENCED, among=(InboxStatus.DEAD,))
    return (
        update(i)
        .where(is_row(t, group, event_id, source), i.c.status.in_([s.value for s in sources]))
        .where(i.c.tx_kind == TxKind.COMMIT.value)
        .values(status=InboxStatus.FENCED.value, settled_at=d.now(), awaits_operator=False)
        .returning(i.c.event_id)
    )
