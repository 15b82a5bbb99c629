"""The statements that look up order and business keys before an event is handed over to a group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, case, func, literal, not_, or_, select, tuple_

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.ports.hand_over import LaterPositions
from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables, in_main_queue

SENT: Final = (OutboxStatus.INIT, OutboxStatus.PROCESSING, OutboxStatus.PROCESSED)
"""The statuses of events that are, may be or will be in a topic."""


def positions(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Select[Any]:
    """Select the positions and the sizes of events of the outbox."""
    o = t.outbox
    size = d.bytes_of(o.c.payload) + func.coalesce(d.bytes_of(o.c.headers), 0)
    return select(
        o.c.event_id,
        o.c.tx_kind,
        o.c.event_type,
        o.c.topic,
        o.c.key,
        *_position(t, d),
        o.c.unconfirmed,
        size.label("size"),
    ).where(d.is_in(o.c.event_id, ids, o.c.event_id.type))


def _position(t: Tables, d: Dialect) -> list[ColumnElement[Any]]:
    """Return the columns that determine when an event is sent among the events of its key.

    A settled row keeps how it waited: if it held its key, it waited for a retry.
    """
    o = t.outbox
    return [
        o.c.seq,
        d.inside_calendar(o.c.created_at).label("created_at"),
        case((_is_delayed(t), d.inside_calendar(o.c.due_at))).label("delayed_until"),
    ]


def _is_delayed(t: Tables) -> ColumnElement[bool]:
    return and_(t.outbox.c.waiting, not_(t.outbox.c.holds_key))


def siblings(
    t: Tables,
    d: Dialect,
    *,
    source: str,
    topics: Sequence[str],
    keys: Sequence[str],
    since: datetime | None,
    later: LaterPositions | None,
) -> Select[Any]:
    """Select the events of these keys and one source that were sent, or are to be sent.

    Events of two sources have no common order: a relay sends only events of its own source.
    No index has settled rows by key, so this is one scan of the outbox, for all of `keys`.
    With `since`, select only rows that are open or settled since then: indexes find them.
    With `later`, select only rows that it includes; other rows are read, but not returned.
    """
    o = t.outbox
    statement = select(
        o.c.event_id,
        o.c.topic,
        o.c.key,
        o.c.event_type,
        o.c.status,
        o.c.unconfirmed,
        d.inside_calendar(o.c.settled_at).label("settled_at"),
        *_position(t, d),
    ).where(
        o.c.source == source,
        o.c.tx_kind == TxKind.COMMIT.value,
        o.c.status.in_([status.value for status in SENT]),
        d.is_in(o.c.topic, topics, o.c.topic.type),
        d.is_in(o.c.key, keys, o.c.key.type),
    )
    if later is not None:
        statement = statement.where(_is_later(t, d, later))
    if since is None:
        return statement
    open_ = o.c.settled_at.is_(None)
    # The open rows, with the conditions of the three indexes that have them.
    return statement.where(
        or_(
            in_main_queue(o),
            and_(open_, o.c.waiting),
            and_(open_, o.c.holds_key),
            o.c.settled_at >= since,
        )
    )


def _is_later(t: Tables, d: Dialect, later: LaterPositions) -> ColumnElement[bool]:
    """Whether `later` includes the position of a row (see `_position`)."""
    o = t.outbox
    late = [and_(_is_delayed(t), d.inside_calendar(o.c.due_at) >= later.delayed_until)]
    if later.seq is not None:
        late.append(and_(not_(_is_delayed(t)), o.c.seq > later.seq))
    if later.due_at is not None:
        written_at = d.inside_calendar(o.c.created_at)
        late.append(and_(not_(_is_delayed(t)), written_at > later.due_at))
    return or_(*late)


def receivers(t: Tables, *, source: str) -> Select[Any]:
    """Select the groups that have received events of a source, with the types; one scan."""
    i = t.inbox
    return (
        select(i.c.consumer_group, i.c.event_type)
        .where(i.c.source == source, i.c.tx_kind == TxKind.COMMIT.value)
        .distinct()
    )


def latest_received(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    source: str,
    topics: Sequence[str],
    keys: Sequence[str],
) -> Select[Any]:
    """Select by topic and key when the latest event that a group received was written.

    No index has settled rows by key, so this is one scan of the inbox, for all of `keys`.
    """
    i = t.inbox
    return (
        select(i.c.topic, i.c.key, d.inside_calendar(func.max(i.c.event_time)).label("written_at"))
        .where(*_received_of(t, d, (group, source), (topics, keys), None))
        .group_by(i.c.topic, i.c.key)
    )


def received_after(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    source: str,
    topics: Sequence[str],
    keys: Sequence[str],
    after: datetime,
    since: datetime | None,
) -> Select[Any]:
    """Select the events of these keys that a group has received, written at `after` or later.

    This is one scan too. With `since`, select only rows that are open or settled since then:
    indexes find them.
    """
    i = t.inbox
    time = d.inside_calendar(i.c.event_time)
    return select(i.c.event_id, i.c.topic, i.c.key, time.label("event_time")).where(
        *_received_of(t, d, (group, source), (topics, keys), since), time >= after
    )


def count_received(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    source: str,
    topics: Sequence[str],
    keys: Sequence[str],
    since: datetime,
) -> Select[Any]:
    """Select how many rows `received_after` reads with `since`, by topic and key."""
    i = t.inbox
    return (
        select(i.c.topic, i.c.key, func.count().label("events"))
        .where(*_received_of(t, d, (group, source), (topics, keys), since))
        .group_by(i.c.topic, i.c.key)
    )


def _received_of(
    t: Tables,
    d: Dialect,
    by_from: tuple[str, str],
    of: tuple[Sequence[str], Sequence[str]],
    since: datetime | None,
) -> list[ColumnElement[bool]]:
    """Return the conditions on rows of a group and a source, of topics and keys."""
    i, (group, source), (topics, keys) = t.inbox, by_from, of
    conditions = [
        i.c.consumer_group == group,
        i.c.source == source,
        i.c.tx_kind == TxKind.COMMIT.value,
        d.is_in(i.c.topic, topics, i.c.topic.type),
        d.is_in(i.c.key, keys, i.c.key.type),
    ]
    if since is not None:
        conditions.append(or_(i.c.settled_at.is_(None), i.c.settled_at >= since))
    return conditions


def business_keys(
    t: Tables, *, group: str, source: str, of: Sequence[tuple[str, str]]
) -> Select[Any]:
    """Select the types and business keys, among these, of which a group has received an event."""
    i = t.inbox
    # A literal, so that the planner can use the unique index of business keys.
    commit = literal(TxKind.COMMIT.value, literal_execute=True)
    return select(i.c.event_type, i.c.biz_key).where(
        i.c.consumer_group == group,
        i.c.source == source,
        i.c.tx_kind == commit,
        i.c.biz_key.is_not(None),
        tuple_(i.c.event_type, i.c.biz_key).in_(list(of)),
    )
