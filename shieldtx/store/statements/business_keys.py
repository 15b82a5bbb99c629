"""The statements that find events by their business keys, in the unique indexes of these keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, and_, literal, select, tuple_

from shieldtx.domain.states import TxKind
from shieldtx.store.tables import Tables


def written(t: Tables, *, event_type: str, biz_key: str) -> Select[Any]:
    """Select the event of a type that has this business key in the outbox."""
    o = t.outbox.c
    return select(o.event_id).where(
        o.event_type == event_type, o.biz_key == biz_key, _is_indexed(t.outbox)
    )


def next_written_type(t: Tables, *, after: str) -> Select[Any]:
    """Select the first event type after this one that has business keys in the outbox."""
    o = t.outbox.c
    return (
        select(o.event_type)
        .where(o.event_type > after, _is_indexed(t.outbox))
        .order_by(o.event_type)
        .limit(1)
    )


def received(t: Tables, *, group: str, source: str, event_type: str, biz_key: str) -> Select[Any]:
    """Select the event with this business key that a group has received from a source."""
    i = t.inbox.c
    return select(i.event_id).where(
        i.consumer_group == group,
        i.source == source,
        i.event_type == event_type,
        i.biz_key == biz_key,
        _is_indexed(t.inbox),
    )


def next_received_type(t: Tables, *, group: str, source: str, event_type: str) -> Select[Any]:
    """Select the next group, source and event type that have business keys in the inbox."""
    i = t.inbox.c
    place = (i.consumer_group, i.source, i.event_type)
    return (
        select(*place)
        .where(tuple_(*place) > tuple_(group, source, event_type), _is_indexed(t.inbox))
        .order_by(*place)
        .limit(1)
    )


def _is_indexed(table: Any) -> ColumnElement[bool]:
    """Whether the partial unique index of business keys has a row."""
    # A literal, so that the planner can use the index in every plan.
    commit = literal(TxKind.COMMIT.value, literal_execute=True)
    return and_(table.c.biz_key.is_not(None), table.c.tx_kind == commit)
