"""The statements on the shard leases and the list of living relays."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Delete,
    Executable,
    Insert,
    Select,
    Update,
    delete,
    func,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


def announce(t: Tables, d: Dialect, *, relay: str, lease: timedelta) -> Insert:
    """Record that the relay lives, for one more lease."""
    statement = d.upsert(t.relay).values(
        relay=relay, alive_until=d.later(lease), started_at=d.now()
    )
    return statement.on_conflict_do_update(
        index_elements=[t.relay.c.relay], set_={"alive_until": d.later(lease)}
    )


def forget_dead_relays(t: Tables, d: Dialect) -> Delete:
    """Remove relays whose lease has run out."""
    return delete(t.relay).where(t.relay.c.alive_until <= d.now())


def count_relays(t: Tables) -> Select[Any]:
    """Count the relays that live."""
    return select(func.count()).select_from(t.relay)


def count_shards(t: Tables) -> Select[Any]:
    """Count the shards of this database."""
    return select(func.count()).select_from(t.shard)


def shard_count(t: Tables, d: Dialect) -> Executable:
    """Select the number of shards that the tables were made for; every role may read it."""
    return d.shard_count(t.outbox, t.shard)


def extend(t: Tables, d: Dialect, *, relay: str, lease: timedelta) -> ReturningUpdate[Any]:
    """Extend the relay's leases, except expired leases, which have to be taken again."""
    s = t.shard
    mine = _locked_in_order(t, s.c.owner == relay, s.c.lease_until > d.now())
    return (
        update(s).where(s.c.shard.in_(mine)).values(lease_until=d.later(lease)).returning(s.c.shard)
    )


def owners(t: Tables, d: Dialect) -> CompoundSelect[Any]:
    """Select the names of all relays that own shards or count as active."""
    s = t.shard
    of_shards = select(s.c.owner).where(s.c.owner.is_not(None), s.c.lease_until > d.now())
    return union(of_shards, select(t.relay.c.relay))


def take_free(
    t: Tables, d: Dialect, *, relay: str, lease: timedelta, limit: int
) -> ReturningUpdate[Any]:
    """Take up to `limit` shards that no relay owns; skip shards that a claim has locked."""
    s = t.shard
    free = (
        select(s.c.shard)
        .where(or_(s.c.owner.is_(None), s.c.lease_until <= d.now()))
        .order_by(s.c.shard)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return (
        update(s)
        .where(s.c.shard.in_(free.cte("free").select()))
        .values(owner=relay, epoch=s.c.epoch + 1, lease_until=d.later(lease))
        .returning(s.c.shard)
    )


def owned(t: Tables, *, relay: str) -> Select[Any]:
    """Select and lock the relay's shards, after the end of every claim of them."""
    s = t.shard
    return select(s.c.shard).where(s.c.owner == relay).order_by(s.c.shard).with_for_update()


def count_owned(t: Tables, *, relay: str) -> Select[Any]:
    """Count the relay's shards."""
    return select(func.count()).select_from(t.shard).where(t.shard.c.owner == relay)


def owned_and_idle(t: Tables, *, relay: str) -> Select[Any]:
    """Select and lock those of the relay's shards that no claim has locked."""
    return owned(t, relay=relay).with_for_update(skip_locked=True)


def hand_over(t: Tables, *, relay: str, to: str) -> Update:
    """Make another relay the owner of the relay's shards."""
    s = t.shard
    return update(s).where(s.c.owner == relay).values(owner=to, epoch=s.c.epoch + 1)


def release(t: Tables, *, relay: str, shards: Collection[int] | None) -> Update:
    """Free some shards of the relay, or all of them (None)."""
    s = t.shard
    some = [] if shards is None else [s.c.shard.in_(sorted(shards))]
    mine = _locked_in_order(t, s.c.owner == relay, *some)
    return update(s).where(s.c.shard.in_(mine)).values(owner=None, lease_until=None)


def forget(t: Tables, *, relay: str) -> Delete:
    """Remove the relay from the list."""
    return delete(t.relay).where(t.relay.c.relay == relay)


def _locked_in_order(t: Tables, *conditions: ColumnElement[bool]) -> Select[Any]:
    """Select and lock shards in the same order as claims do, which prevents deadlocks."""
    s = t.shard
    locked = select(s.c.shard).where(*conditions).order_by(s.c.shard).with_for_update()
    return locked.cte("locked").select()
