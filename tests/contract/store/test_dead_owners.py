"""Leases of owners that have died on this host end early; those of all others do not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import create_engine, select

from shieldtx._process_tokens import owner_has_died
from shieldtx.errors import ConfigurationError, LeaseLost
from shieldtx.ports.relay import Claim, Settlement
from shieldtx.store.dead_owners import DeadOwners
from shieldtx.store.shard_leases import SqlLeaseStore
from tests.contract.conftest import POSTGRESQL, SHARDS, Stores
from tests.contract.store.test_inbox import GROUP, begin, due, may_begin, receive
from tests.contract.store.test_outbox import column, envelope, ids, write
from tests.unit.test_process_tokens import maker

LEASE = timedelta(hours=1)


def claim(stores: Stores, relay: str, limit: int = 100) -> Claim:
    return stores.outbox.claim(relay=relay, limit=limit)


def is_dead(name: str) -> bool:
    return name == "dead"


def of_heir(stores: Stores, *, died: Callable[[str], bool] = is_dead) -> SqlLeaseStore:
    return SqlLeaseStore(stores.engine, stores.tables, has_died=died)


def test_shards_of_a_dead_relay_get_a_higher_epoch_at_once(stores: Stores) -> None:
    stores.leases.renew(relay="dead", lease=LEASE)
    s = stores.tables.shard
    with stores.engine.connect() as connection:
        before = connection.scalars(select(s.c.epoch).order_by(s.c.shard)).all()
    taken = of_heir(stores).renew(relay="heir", lease=LEASE)
    assert (len(taken.shards), taken.relays) == (SHARDS, 1)
    with stores.engine.connect() as connection:
        assert connection.scalars(select(s.c.epoch).order_by(s.c.shard)).all() == [
            epoch + 1 for epoch in before
        ]


def test_a_living_relay_keeps_its_shards_and_rows(stores: Stores) -> None:
    stores.leases.renew(relay="living", lease=LEASE)
    (written,) = write(stores, envelope("k"))
    assert ids(claim(stores, "living")) == [written]
    joined = of_heir(stores).renew(relay="heir", lease=LEASE)
    assert (joined.shards, joined.relays) == (frozenset(), 2)
    assert not ids(claim(stores, "heir"))


def test_rows_of_a_dead_relay_are_claimed_at_once_as_unconfirmed(stores: Stores) -> None:
    stores.leases.renew(relay="dead", lease=LEASE)
    written = write(stores, envelope("k"), envelope("k"), envelope("other"))
    assert ids(claim(stores, "dead", limit=2)) == written[:2]
    of_heir(stores).renew(relay="heir", lease=LEASE)
    again = claim(stores, "heir")
    assert ids(again) == written, "in the order of writing"
    assert [event.unconfirmed for event in again.events] == [True, True, False]
    assert [event.attempts for event in again.events] == [2, 2, 1]


def test_a_late_statement_of_a_dead_relay_changes_nothing(stores: Stores) -> None:
    stores.leases.renew(relay="dead", lease=LEASE)
    (written,) = write(stores, envelope("k"))
    late = claim(stores, "dead")
    of_heir(stores).renew(relay="heir", lease=LEASE)
    claim(stores, "heir")
    assert stores.outbox.settle(late.token, Settlement(processed=[written])) == 0
    assert not ids(claim(stores, "dead"))
    assert column(stores, "settled_at", written) is None


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
@pytest.mark.parametrize("what", ["shard", "outbox"])
def test_what_the_server_still_locks_for_a_dead_relay_is_left(stores: Stores, what: str) -> None:
    stores.leases.renew(relay="dead", lease=LEASE)
    (written,) = write(stores, envelope("k"))
    claim(stores, "dead")
    shard = column(stores, "shard", written)
    t, impatient = (
        stores.tables,
        create_engine(stores.engine.url, connect_args={"options": "-c lock_timeout=500"}),
    )
    heir = SqlLeaseStore(impatient, t, has_died=is_dead)
    locked = {
        "shard": select(t.shard).where(t.shard.c.shard == shard).with_for_update(read=True),
        "outbox": select(t.outbox).where(t.outbox.c.event_id == written).with_for_update(),
    }[what]
    with stores.engine.begin() as executing:
        executing.execute(locked)
        taken = heir.renew(relay="heir", lease=LEASE).shards
        assert shard not in taken, "later events of the key would overtake"
    assert shard in heir.renew(relay="heir", lease=LEASE).shards
    impatient.dispose()
    assert ids(claim(stores, "heir")) == [written]


def test_a_real_dead_process_is_found_by_its_name(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other process is a relay in name only: this one renews for it.
    monkeypatch.setattr("shieldtx.store.shard_leases.is_of_this_process", lambda _: True)
    with maker() as (_, token):
        name = f"host-1-{token.hex}+3"
        stores.leases.renew(relay=name, lease=LEASE)
        dead = DeadOwners(stores.engine, stores.tables)
        assert not dead.has_relay()
        heir = of_heir(stores, died=owner_has_died)
        assert not heir.renew(relay="heir", lease=LEASE).shards
    assert dead.has_relay()
    assert len(heir.renew(relay="heir", lease=LEASE).shards) == SHARDS
    assert not dead.has_relay()


def dead_owners(stores: Stores, *dead: UUID) -> DeadOwners:
    return DeadOwners(stores.engine, stores.tables, consumer_died=lambda token: token in dead)


def test_a_first_attempt_that_died_is_counted_and_due_at_once(stores: Stores) -> None:
    first, other = envelope("k"), envelope("other")
    receive(stores, first, other)
    died, living = begin(stores, first, lease=LEASE), begin(stores, other, lease=LEASE)
    assert dead_owners(stores).end_first_attempts(GROUP) == 0
    assert due(stores) == []
    assert dead_owners(stores, died.token).end_first_attempts("another group") == 0
    assert dead_owners(stores, died.token).end_first_attempts(GROUP) == 1
    assert due(stores) == [first.id], "the living worker keeps its attempt"
    assert begin(stores, first).number == 2
    assert living.number == 1
    with pytest.raises(LeaseLost), stores.inbox.effect(died):
        pass


def test_a_second_attempt_that_died_keeps_its_lease(stores: Stores) -> None:
    event = envelope("k")
    receive(stores, event)
    died = begin(stores, event, lease=LEASE)
    dead_owners(stores, died.token).end_first_attempts(GROUP)
    again = begin(stores, event, lease=LEASE)
    assert dead_owners(stores, died.token, again.token).end_first_attempts(GROUP) == 0
    assert not may_begin(stores, event)


def test_the_attempt_of_this_process_has_not_died(stores: Stores) -> None:
    event = envelope("k")
    receive(stores, event)
    begin(stores, event, lease=LEASE)
    assert DeadOwners(stores.engine, stores.tables).end_first_attempts(GROUP) == 0


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
def test_an_attempt_whose_transaction_still_runs_is_left(
    stores: Stores, own_log: pytest.LogCaptureFixture
) -> None:
    event = envelope("k")
    receive(stores, event)
    died = begin(stores, event, lease=LEASE)
    with stores.inbox.effect(died):
        assert dead_owners(stores, died.token).end_first_attempts(GROUP) == 0
    assert due(stores) == []
    assert own_log.records == []


def test_relay_that_was_built_before_a_fork_is_refused(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shieldtx.store.shard_leases.is_of_this_process", lambda _: False)
    with pytest.raises(ConfigurationError, match="built before its process forked"):
        SqlLeaseStore(stores.engine, stores.tables).renew(relay="a", lease=timedelta(minutes=1))
