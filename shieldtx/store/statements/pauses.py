"""The statements on the paused handlers of consumer groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    func,
    select,
    true,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert, ReturningUpdate

from shieldtx.domain.events import storable
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.pauses import ALL, BREAKER, HandlerKey
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables

GROUP = "of_group"


@built_once
def pauses(t: Tables, d: Dialect) -> Select[Any]:
    """Select the pauses of a group, and whether their probes are due. Run with GROUP."""
    of_group = t.pause.c.consumer_group == bindparam(GROUP, type_=Text())
    return _pauses(t, d).where(of_group)


def every_pause(t: Tables, d: Dialect) -> Select[Any]:
    """Select the pauses of all groups."""
    return _pauses(t, d)


def _pauses(t: Tables, d: Dialect) -> Select[Any]:
    p = t.pause.c
    is_due = func.coalesce(p.probe_at <= d.now(), False).label("is_due")
    columns = (p.consumer_group, p.event_type, p.tx_kind, p.paused_at, p.paused_by, p.reason)
    return select(*columns, p.probe_at, p.probes, is_due).order_by(*columns[:3])


def trip(
    t: Tables, d: Dialect, *, group: str, handler: HandlerKey, reason: str, first_probe: timedelta
) -> ReturningInsert[Any]:
    """Pause a handler until a probe succeeds, unless it is paused already; return a new pause."""
    paused = d.insert_new(t.pause).values(
        consumer_group=group,
        event_type=handler[0],
        tx_kind=handler[1].value,
        paused_at=d.now(),
        paused_by=BREAKER,
        reason=storable(reason),
        probe_at=d.later(first_probe),
    )
    return paused.returning(t.pause.c.event_type)


def waiting(t: Tables, d: Dialect, *, group: str, handler: HandlerKey) -> Select[Any]:  # noqa: ARG001  one signature for all
    """Count the unfinished events of a handler."""
    i = t.inbox.c
    return select(func.count()).where(
        i.consumer_group == group,
        i.settled_at.is_(None),
        i.event_type == handler[0],
        i.tx_kind == handler[1].value,
    )


def has_succeeded(
    t: Tables, d: Dialect, *, group: str, handler: HandlerKey, within: timedelta
) -> Select[Any]:
    """Select whether an event of a handler was applied within this time.

    A rollback is PROCESSED also where nothing was to be compensated, without a call of the handler.
    """
    i = t.inbox.c
    is_called = true() if handler[1] is TxKind.COMMIT else i.compensated_id.is_not(None)
    applied = exists().where(
        is_called,
        i.consumer_group == group,
        i.event_type == handler[0],
        i.tx_kind == handler[1].value,
        i.status == InboxStatus.PROCESSED,
        i.settled_at > d.later(-within),
    )
    return select(applied)


def claim_probe(
    t: Tables, d: Dialect, *, group: str, handler: HandlerKey, token: UUID, timeout: timedelta
) -> ReturningUpdate[Any]:
    """Claim a due probe: the next one is due after the timeout. Returns the probe's number."""
    p = t.pause
    return (
        update(p)
        .where(_is_of(t, group, handler), p.c.probe_at <= d.now())
        .values(probe_token=token, probes=p.c.probes + 1, probe_at=d.later(timeout))
        .returning(p.c.probes)
    )


def settle_probe(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    handler: HandlerKey,
    token: UUID,
    delay: timedelta,
    reason: str | None,
) -> Update:
    """Plan the next probe; one without a reason does not count."""
    p = t.pause
    planned = (
        update(p)
        .where(_is_of(t, group, handler), p.c.probe_token == token)
        .values(probe_token=None, probe_at=d.later(delay))
    )
    if reason is None:
        return planned.values(probes=p.c.probes - 1)
    return planned.values(reason=storable(reason))


def close(t: Tables, d: Dialect, *, group: str, handler: HandlerKey, token: UUID) -> Delete:  # noqa: ARG001  one signature for all
    """End the pause of a handler whose probe has succeeded."""
    return delete(t.pause).where(_is_of(t, group, handler), t.pause.c.probe_token == token)


def pause(t: Tables, d: Dialect, *, group: str, event_type: str, who: str, reason: str) -> Insert:
    """Pause handlers of both kinds until an operator resumes them, with the newest reason."""
    chosen = {"paused_at": d.now(), "paused_by": storable(who), "reason": storable(reason)}
    named = {"consumer_group": group, "event_type": event_type, "tx_kind": ALL}
    p = t.pause.c
    return (
        d.upsert(t.pause)
        .values(**named, **chosen)
        .on_conflict_do_update(
            index_elements=[p.consumer_group, p.event_type, p.tx_kind], set_=chosen
        )
    )


def resume(t: Tables, d: Dialect, *, group: str, event_type: str) -> ReturningDelete[Any]:  # noqa: ARG001  one signature for all
    """End the pauses of an event type, or of the whole group and all its types (ALL)."""
    p = t.pause
    ended = delete(p).where(p.c.consumer_group == group)
    if event_type != ALL:
        ended = ended.where(p.c.event_type == event_type)
    return ended.returning(p.c.event_type, p.c.tx_kind, p.c.paused_by, p.c.reason)


def _is_of(t: Tables, group: str, handler: HandlerKey) -> ColumnElement[bool]:
    p = t.pause.c
    return and_(
        p.consumer_group == group, p.event_type == handler[0], p.tx_kind == handler[1].value
    )
