"""The statements that look up order and business keys before an event is handed over to a group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, literal, select, tuple_

from shieldtx.domain.states import TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


def lines(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Select[Any]:
    """Select where COMMIT events of the outbox stand, and how large they are."""
    o = t.outbox
    size = d.bytes_of(o.c.payload) + func.coalesce(d.bytes_of(o.c.headers), 0)
    return select(
        o.c.event_id,
        o.c.seq,
        o.c.topic,
        o.c.key,
        o.c.created_at,
        o.c.unconfirmed,
        size.label("size"),
    ).where(d.is_in(o.c.event_id, ids, o.c.event_id.type), o.c.tx_kind == TxKind.COMMIT.value)


def latest_received(
    t: Tables, d: Dialect, *, group: str, source: str, keys: Sequence[str]
) -> Select[Any]:
    """Select by topic and key when the latest event that a group has of them was written.

    There is no index of settled rows by key: this is one scan of the inbox, for all of `keys`.
    """
    i = t.inbox
    return (
        select(i.c.topic, i.c.key, func.max(i.c.event_time).label("written_at"))
        .where(
            i.c.consumer_group == group,
            i.c.source == source,
            i.c.tx_kind == TxKind.COMMIT.value,
            d.is_in(i.c.key, keys, i.c.key.type),
        )
        .group_by(i.c.topic, i.c.key)
    )


def received_of(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    source: str,
    keys: Sequence[str],
    times: Sequence[datetime],
) -> Select[Any]:
    """Select the events with these keys and times that a group has received; likewise one scan."""
    i = t.inbox
    return select(i.c.event_id, i.c.topic, i.c.key, i.c.event_time).where(
        i.c.consumer_group == group,
        i.c.source == source,
        i.c.tx_kind == TxKind.COMMIT.value,
        d.is_in(i.c.key, keys, i.c.key.type),
        d.is_in(i.c.event_time, times, i.c.event_time.type),
    )


def business_keys(
    t: Tables, *, group: str, source: str, of: Sequence[tuple[str, str]]
) -> Select[Any]:
    """Select which of these types and business keys a group has received an event of."""
    i = t.inbox
    # Written out, so that the planner sees that the unique index of business keys will do.
    commit = literal(TxKind.COMMIT.value, literal_execute=True)
    return select(i.c.event_type, i.c.biz_key).where(
        i.c.consumer_group == group,
        i.c.source == source,
        i.c.tx_kind == commit,
        i.c.biz_key.is_not(None),
        tuple_(i.c.event_type, i.c.biz_key).in_(list(of)),
    )
