"""The statements that discard dead letters and parked records."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Delete,
    Select,
    Text,
    and_,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.inbox import is_row
from shieldtx.store.tables import Tables

PARKED: Final = "PARKED"
"""The state of a record that waits for an operator."""

_ID: Final = '["ce_id", "'
"""The text before the event id in the headers of a parked record."""


def discard_event(t: Tables, d: Dialect, event_id: UUID) -> ReturningUpdate[tuple[str]]:
    """Discard an event that is still FAILED."""
    o = t.outbox
    sources = OUTBOX.sources_of(OutboxStatus.DISCARDED, among=(OutboxStatus.FAILED,))
    return (
        update(o)
        .where(o.c.event_id == event_id, o.c.status.in_([s.value for s in sources]))
        .values(status=OutboxStatus.DISCARDED.value, settled_at=d.now())
        .returning(o.c.status)
    )


def discard_received(
    t: Tables, d: Dialect, *, group: str, event_id: UUID, source: str
) -> ReturningUpdate[tuple[str]]:
    """Discard a rollback or an event of the inbox that is still DEAD."""
    i = t.inbox
    sources = INBOX.sources_of(InboxStatus.DISCARDED, among=(InboxStatus.DEAD,))
    return (
        update(i)
        .where(is_row(t, group, event_id, source), i.c.status.in_([s.value for s in sources]))
        .values(status=InboxStatus.DISCARDED.value, settled_at=d.now(), awaits_operator=False)
        .returning(i.c.status)
    )


def discard_record(
    t: Tables, d: Dialect, *, group: str, record: ReceivedRecord, digest: str
) -> ReturningUpdate[tuple[str]]:
    """Discard a parked record that is not discarded yet."""
    p = t.parked
    return (
        update(p)
        .where(is_record(t, group, record, digest), p.c.discarded_at.is_(None))
        .values(discarded_at=d.now())
        .returning(p.c.consumer_group)
    )


def parked_status(t: Tables, *, group: str, record: ReceivedRecord, digest: str) -> Select[Any]:
    """Select whether a parked record is still PARKED, or DISCARDED."""
    is_parked = t.parked.c.discarded_at.is_(None)
    status = case((is_parked, literal(PARKED)), else_=literal(InboxStatus.DISCARDED.value))
    return select(status).where(is_record(t, group, record, digest))


def discarded_records(
    t: Tables, d: Dialect, *, group: str | None, ids: Sequence[UUID]
) -> Select[Any]:
    """Select the headers of discarded records of these events, of one group or of any.

    The statement searches the ids in the headers of `shield_parked`: a JSON list of names and
    values in base64. No index has them, so this is one scan of the discarded records.
    """
    headers = t.parked.c.record_headers
    values = [base64.b64encode(str(event_id).encode()).decode() for event_id in ids]
    length = len(values[0])
    found = func.substr(headers, d.position_of(headers, _ID) + len(_ID), length, type_=Text())
    statement = select(headers).where(
        t.parked.c.discarded_at.is_not(None), d.is_in(found, values, Text())
    )
    return statement if group is None else statement.where(t.parked.c.consumer_group == group)


def is_record(t: Tables, group: str, record: ReceivedRecord, digest: str) -> ColumnElement[bool]:
    """Whether a row holds this parked record."""
    p = t.parked
    return and_(
        p.c.consumer_group == group,
        p.c.topic == record.topic,
        p.c.record_partition == record.partition,
        p.c.record_offset == record.offset,
        p.c.digest == digest,
    )


def purge_parked(
    t: Tables, d: Dialect, *, older_than: timedelta, waiting: timedelta | None, limit: int
) -> Delete:
    """Remove parked records that were discarded long ago, or have waited for too long."""
    p, key = t.parked, list(t.parked.primary_key.columns)
    is_over = p.c.discarded_at < d.later(-older_than)
    if waiting is not None:
        is_over = or_(is_over, p.c.parked_at < d.later(-waiting))
    over = select(*key).where(is_over).limit(limit).with_for_update(skip_locked=True)
    return delete(p).where(tuple_(*key).in_(over))
