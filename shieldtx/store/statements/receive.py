"""The statements that store records in the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Float, Insert, Select, Text, Uuid, bindparam, case, exists, or_, select
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from shieldtx.domain.states import InboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.inbox import release
from shieldtx.store.tables import Tables

LEASE = "lease_seconds"
"""How long the first attempt of an arrival may take in a batch; None if it is not started."""

TOKEN = "with_token"  # noqa: S105  the name of a parameter
GROUP = "of_group"

ARRIVAL = (
    *("event_id", "event_type", "source", "topic", "payload", "tx_kind", "operation", "key"),
    *("biz_key", "headers", "causation_id", "causation_source", "traceparent"),
    "dataschema",
    *("event_time", "record_partition", "record_offset"),
)
"""The columns of an arrival."""


@built_once
def open_keys(t: Tables, d: Dialect) -> Select[Any]:
    """Select the given keys that have an unsettled row.

    Run with GROUP, `topics` and `keys`.
    """
    i = t.inbox.c
    return (
        select(i.topic, i.key)
        .where(i.consumer_group == bindparam(GROUP, type_=i.consumer_group.type))
        .where(i.settled_at.is_(None))
        .where(d.is_in_parameter(i.topic, "topics"), d.is_in_parameter(i.key, "keys"))
        .distinct()
    )


@built_once
def receive(t: Tables, d: Dialect) -> ReturningInsert[Any]:
    """Store arrivals that no unique key has yet, and return their ids and sources.

    An arrival with a lease starts its first attempt. Run with the dialect's `rows_parameters` of
    the columns ARRIVAL and LEASE, of GROUP and TOKEN.
    """
    columns = [t.inbox.c[name] for name in ARRIVAL]
    statement = d.insert_new_rows(
        t.inbox, columns, {LEASE: Float()}, lambda brought: _state(d, brought[LEASE])
    )
    return statement.returning(t.inbox.c.event_id, t.inbox.c.source)


def _state(d: Dialect, lease: Any) -> dict[str, Any]:
    started, token = lease.is_not(None), bindparam(TOKEN, type_=Uuid())
    return {
        "consumer_group": bindparam(GROUP, type_=Text()),
        "status": case((started, InboxStatus.PROCESSING.value), else_=InboxStatus.INIT.value),
        "attempts": case((started, 1), else_=0),
        "together": started,
        "lease_token": case((started, token)),
        "lease_until": case((started, d.later(lease))),
        "due_at": d.now(),
        "received_at": d.now(),
    }


def known(t: Tables, d: Dialect, group: str, ids: Sequence[UUID]) -> Select[Any]:
    """Select which of these events the group has received before."""
    i = t.inbox
    return select(i.c.event_id, i.c.source).where(
        i.c.consumer_group == group, d.is_in(i.c.event_id, ids, i.c.event_id.type)
    )


@built_once
def release_blocked(t: Tables, d: Dialect) -> ReturningUpdate[Any]:
    """Undo the start of rows of a batch whose key has an earlier open row of another batch.

    A separate statement sees the rows that the INSERT may have waited for. Run with
    `batch_parameters`.
    """
    i, earlier = t.inbox, t.inbox.alias("earlier")
    token = bindparam(TOKEN, type_=Uuid())
    precedes = exists().where(
        earlier.c.consumer_group == i.c.consumer_group,
        earlier.c.settled_at.is_(None),
        earlier.c.topic == i.c.topic,
        earlier.c.key == i.c.key,
        earlier.c.seq < i.c.seq,
        or_(earlier.c.lease_token.is_(None), earlier.c.lease_token != token),
    )
    return release(t, d).where(precedes).returning(i.c.event_id, i.c.source)


def park(t: Tables, d: Dialect) -> Insert:
    """Store records that cannot become inbox rows; a redelivered record is stored once."""
    return d.insert_new(t.parked).values(parked_at=d.now())
