"""The statements that find and count a group's unfinished inbox rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    func,
    not_,
    or_,
    select,
)

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.inbox import Handled
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import inbox_order
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.tables import Tables

_GROUP = bindparam("of_group", type_=Text())
_MOST = bindparam("most", type_=Integer())
_BYTES = bindparam("bytes_at_most", type_=BigInteger())
_HANDLED = {TxKind.COMMIT: "handled_commits", TxKind.ROLLBACK: "handled_rollbacks"}


@built_once
def due(t: Tables, d: Dialect) -> Select[Any]:
    """Select rows that may be processed, in the order of arrival; run with `group_parameters`.

    One limit counts rows, the other the bytes of their payloads; one row is selected whatever its
    size. The statement omits rows that the worker has no handler for: they would fill the limit.
    """
    i = t.inbox.alias("waiting")
    columns = envelope_columns(i, "event_time")
    line = (
        select(*columns, i.c.seq, d.bytes_of(i.c.payload).label("size"))
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), _is_handled(i, d))
        .where(inbox_order.is_free(i, d), not_(inbox_order.is_blocked(t, i)))
        .order_by(i.c.seq)
        .limit(_MOST)
        .subquery("line")
    )
    before = func.sum(line.c.size).over(order_by=line.c.seq, rows=(None, -1))
    summed = select(line, before.label("before")).subquery("summed")
    return (
        select(*(summed.c[column.name] for column in columns))
        .where(func.coalesce(summed.c.before, 0) < _BYTES)
        .order_by(summed.c.seq)
    )


@built_once
def longest_due(t: Tables, d: Dialect) -> Select[Any]:
    """Select the row that has been due for longest; run with `group_parameters`.

    A probe takes this row, and sets its due time to the present when it starts: so the probes of a
    handler take turns among its rows. A row that always fails, or kills each worker, does not keep
    it paused.
    """
    i = t.inbox.alias("waiting")
    return _ready(t, d, i).order_by(i.c.due_at, i.c.seq).limit(1)


@built_once
def newest_unattempted(t: Tables, d: Dialect) -> Select[Any]:
    """Select the row that arrived last, of those without an attempt; with `group_parameters`.

    A burst of bad data arrives in a row: the newest event is probably another one.
    """
    i = t.inbox.alias("waiting")
    untouched = _ready(t, d, i).where(i.c.status == InboxStatus.INIT.value)
    return untouched.order_by(i.c.seq.desc()).limit(1)


def _ready(t: Tables, d: Dialect, i: Any) -> Select[Any]:
    return (
        select(*envelope_columns(i, "event_time"))
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), _is_handled(i, d))
        .where(inbox_order.is_free(i, d), not_(inbox_order.is_blocked(t, i)))
    )


@built_once
def pending(t: Tables, d: Dialect) -> Select[Any]:
    """Count a group's unfinished rows by origin; run with `group_parameters`."""
    i = t.inbox
    origin = (i.c.topic, i.c.tx_kind, i.c.record_partition)
    return (
        select(*origin, func.count())
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), _is_handled(i, d))
        .where(i.c.record_partition.is_not(None))
        .group_by(*origin)
    )


@built_once
def unfinished(t: Tables, d: Dialect) -> Select[Any]:  # noqa: ARG001  as the others
    """Count a group's unfinished rows of all types, up to a limit."""
    i = t.inbox
    rows = (
        select(i.c.seq)
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None))
        .order_by(i.c.seq)
        .limit(_MOST)
        .subquery()
    )
    return select(func.count()).select_from(rows)


@built_once
def unhandled(t: Tables, d: Dialect) -> Select[Any]:
    """Count unfinished rows without a handler by type and kind, up to a limit."""
    i = t.inbox
    rows = (
        select(i.c.event_type, i.c.tx_kind)
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), not_(_is_handled(i, d)))
        .limit(_MOST)
        .subquery()
    )
    return select(*rows.c, func.count()).group_by(*rows.c)


def group_parameters(
    group: str, handled: Handled, limit: int | None = None, limit_bytes: int | None = None
) -> dict[str, Any]:
    """Return the parameters of the statements on the unfinished rows of a group."""
    of_kinds = {
        _HANDLED[kind]: sorted(name for name, its in handled if its is kind) for kind in TxKind
    }
    return {_GROUP.key: group, _MOST.key: limit, _BYTES.key: limit_bytes} | of_kinds


def _is_handled(i: Any, d: Dialect) -> ColumnElement[bool]:
    return or_(
        *(
            and_(i.c.tx_kind == kind.value, d.is_in_parameter(i.c.event_type, names))
            for kind, names in _HANDLED.items()
        )
    )
