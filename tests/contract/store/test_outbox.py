"""The behaviour of every outbox and lease store, on each database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import create_engine, func, select, text, update
from sqlalchemy.orm import Session

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.states import Operation
from shieldtx.errors import EventRefused, LocalRollbackFailed
from shieldtx.ports.outbox import Posting
from shieldtx.ports.relay import Claim, Retry, Settlement
from shieldtx.store.dialects import dialect_of
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.statements import status
from tests.contract.conftest import POSTGRESQL, SHARDS, Stores

LEASE = timedelta(minutes=1)


def envelope(key: str | None = "k", **more: Any) -> Envelope:
    return Envelope(
        **{
            "id": new_event_id(),
            "type": "things.happened",
            "source": "things",
            "topic": "things",
            "payload": '{"a":1}',
            "time": datetime.now(UTC),
            "key": key,
        }
        | more
    )


def write(stores: Stores, *envelopes: Envelope, **due: Any) -> list[UUID]:
    with stores.engine.begin() as connection:
        stores.writer.insert(connection, [Posting(envelope=e, **due) for e in envelopes])
    return [e.id for e in envelopes]


def claim(stores: Stores, limit: int = 100) -> Claim:
    stores.leases.renew(relay="me", lease=LEASE)
    return stores.outbox.claim(relay="me", limit=limit)


def ids(claimed: Claim) -> list[UUID]:
    return [event.envelope.id for event in claimed.events]


def let_all_leases_run_out(stores: Stores) -> None:
    """Set all leases back, as if no relay had renewed for long."""
    past = datetime.now(UTC) - timedelta(minutes=1)
    t = stores.tables
    with stores.engine.begin() as connection:
        connection.execute(update(t.shard).values(lease_until=past))
        connection.execute(update(t.relay).values(alive_until=past))
        held = t.outbox.c.lease_until.is_not(None)
        connection.execute(update(t.outbox).where(held).values(lease_until=past))


def column(stores: Stores, name: str, event_id: UUID) -> Any:
    o = stores.tables.outbox
    with stores.engine.connect() as connection:
        return connection.scalars(select(o.c[name]).where(o.c.event_id == event_id)).one()


def test_an_envelope_comes_back_as_it_was_written(stores: Stores) -> None:
    written = envelope(
        key="schlüssel",
        biz_key="geschäft",
        headers={"a": "ä", "b": ""},
        operation=Operation.DELETE,
        causation_id=new_event_id(),
        causation_source="elsewhere",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        payload='{"text":"\\u2028 ünïcödé \\"quoted\\""}',
    )
    write(stores, written)
    [claimed] = claim(stores).events
    assert claimed.envelope.evolve(time=written.time) == written
    assert abs(claimed.envelope.time - datetime.now(UTC)) < timedelta(minutes=1)
    assert claimed.envelope.time.tzinfo is not None


@pytest.mark.begun_by_hand
def test_the_rows_of_a_key_are_claimed_in_the_order_of_writing(stores: Stores) -> None:
    written = write(stores, *(envelope("same") for _ in range(5)))
    assert ids(claim(stores)) == written


def test_order_of_a_key_ignores_when_transactions_began(stores: Stores) -> None:
    first, second = write(stores, envelope(), envelope())
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        # As of a transaction that began before the other, and wrote its event later.
        earlier = update(o).where(o.c.event_id == second)
        connection.execute(earlier.values(due_at=datetime.now(UTC) - timedelta(minutes=1)))
    assert ids(claim(stores)) == [first, second]


def test_claimed_row_is_not_claimed_again_during_its_lease(stores: Stores) -> None:
    write(stores, envelope())
    assert len(claim(stores).events) == 1
    assert claim(stores).events == []


def test_a_claim_takes_no_more_than_asked_for(stores: Stores) -> None:
    written = write(stores, *(envelope("same") for _ in range(5)))
    assert ids(claim(stores, limit=1)) == written[:1]


def test_claim_returns_the_time_left_of_its_lease(stores: Stores) -> None:
    write(stores, envelope())
    left = claim(stores).lease_left
    assert LEASE - timedelta(seconds=20) < left <= LEASE


def test_without_shards_nothing_is_claimed(stores: Stores) -> None:
    write(stores, envelope())
    assert stores.outbox.claim(relay="nobody", limit=10).events == []


@pytest.mark.parametrize("way", ["processed", "unsent", "unconfirmed", "retries"])
def test_a_settlement_counts_only_with_the_right_token(stores: Stores, way: str) -> None:
    [event_id] = write(stores, envelope())
    claimed = claim(stores)
    what: Any = [event_id]
    if way == "retries":
        what = [Retry(event_id=event_id, delay=LEASE, reason="later")]
    settlement = Settlement(**{way: what})
    assert stores.outbox.settle(uuid4(), settlement) == 0
    assert column(stores, "status", event_id) == "PROCESSING"
    assert stores.outbox.settle(claimed.token, settlement) == 1
    assert stores.outbox.settle(claimed.token, settlement) == 0


def test_a_processed_row_is_settled_and_free_of_its_lease(stores: Stores) -> None:
    [event_id] = write(stores, envelope())
    stores.outbox.settle(claim(stores).token, Settlement(processed=[event_id]))
    assert column(stores, "status", event_id) == "PROCESSED"
    assert column(stores, "settled_at", event_id) is not None
    assert column(stores, "lease_token", event_id) is None
    assert column(stores, "lease_until", event_id) is None
    assert claim(stores).events == []


@pytest.mark.parametrize("unconfirmed", [False, True])
def test_released_row_has_its_attempt_back_and_keeps_its_order(
    stores: Stores, unconfirmed: bool
) -> None:
    written = write(stores, envelope("same"), envelope("same"))
    way = "unconfirmed" if unconfirmed else "unsent"
    stores.outbox.settle(claim(stores).token, Settlement(**{way: written}))
    again = claim(stores)
    assert ids(again) == written
    assert [event.attempts for event in again.events] == [1, 1]
    assert [event.unconfirmed for event in again.events] == [unconfirmed, unconfirmed]


def test_row_that_waits_for_a_retry_blocks_only_its_key(
    stores: Stores,
) -> None:
    first, later, other = write(stores, envelope("a"), envelope("a"), envelope("b"))
    claimed = claim(stores)
    retry = Retry(event_id=first, delay=timedelta(hours=1), reason="not now")
    stores.outbox.settle(claimed.token, Settlement(unsent=[later, other], retries=[retry]))
    assert ids(claim(stores)) == [other]
    assert column(stores, "last_error", first) == "not now"


def test_row_that_waits_for_a_retry_blocks_only_its_source(stores: Stores) -> None:
    [first] = write(stores, envelope(source="another"))
    claimed = claim(stores)
    retry = Retry(event_id=first, delay=timedelta(hours=1), reason="not now")
    stores.outbox.settle(claimed.token, Settlement(retries=[retry]))
    _, own = write(stores, envelope(source="another"), envelope())
    assert ids(claim(stores)) == [own]


def test_due_retry_is_claimed_with_its_attempts_counted(stores: Stores) -> None:
    first, later = write(stores, envelope("a"), envelope("a"))
    claimed = claim(stores)
    retry = Retry(event_id=first, delay=timedelta(0), reason="not now")
    stores.outbox.settle(claimed.token, Settlement(unsent=[later], retries=[retry]))
    again = claim(stores)
    assert [(e.envelope.id, e.attempts) for e in again.events] == [(first, 2)]
    stores.outbox.settle(again.token, Settlement(processed=[first]))
    assert ids(claim(stores)) == [later]


def test_second_retry_blocks_its_key_as_the_first_did(stores: Stores) -> None:
    first, later = write(stores, envelope("a"), envelope("a"))
    claimed = claim(stores)
    retry = Retry(event_id=first, delay=timedelta(0), reason="not now")
    stores.outbox.settle(claimed.token, Settlement(unsent=[later], retries=[retry]))
    again = Retry(event_id=first, delay=timedelta(hours=1), reason="still not")
    stores.outbox.settle(claim(stores).token, Settlement(retries=[again]))
    assert claim(stores).events == []
    assert column(stores, "status", later) == "INIT"


def test_event_published_after_a_retry_keeps_no_error(stores: Stores) -> None:
    [event_id] = write(stores, envelope())
    retry = Retry(event_id=event_id, delay=timedelta(0), reason="not now")
    stores.outbox.settle(claim(stores).token, Settlement(retries=[retry]))
    stores.outbox.settle(claim(stores).token, Settlement(processed=[event_id]))
    assert column(stores, "status", event_id) == "PROCESSED"
    assert column(stores, "last_error", event_id) is None


def test_delayed_events_are_sent_when_due_and_block_no_other(stores: Stores) -> None:
    write(stores, envelope("a"), delay=timedelta(hours=1))
    write(stores, envelope("a"), at=datetime.now(UTC) + timedelta(hours=1))
    due = write(stores, envelope("a"), at=datetime.now(UTC) - timedelta(hours=1))
    now = write(stores, envelope("a"))
    assert sorted(ids(claim(stores))) == sorted(due + now)


def test_a_delayed_event_can_be_cancelled_until_it_is_due(stores: Stores) -> None:
    [waits] = write(stores, envelope(), delay=timedelta(hours=1))
    [due] = write(stores, envelope(), at=datetime.now(UTC) - timedelta(hours=1))
    [ordinary] = write(stores, envelope())
    with stores.engine.begin() as connection:
        changes = [
            stores.writer.cancel(connection, i, who="me") for i in (waits, due, ordinary, waits)
        ]
    assert [change.done for change in changes] == [True, False, False, False]
    assert column(stores, "status", waits) == "DISCARDED"


@pytest.mark.begun_by_hand
def test_failing_runs_the_local_rollback_in_the_same_transaction(stores: Stores) -> None:
    good, bad = write(stores, envelope("a"), envelope("b"))
    token = claim(stores).token

    def note(session: Session) -> None:
        session.execute(text("CREATE TABLE undone (what text)"))

    def note_and_break(session: Session) -> None:
        session.execute(text("DROP TABLE undone"))
        raise RuntimeError("broken")

    assert stores.outbox.fail(token, good, reason="rejected", local_rollback=note)
    assert column(stores, "status", good) == "FAILED"
    with pytest.raises(LocalRollbackFailed, match="broken"):
        stores.outbox.fail(token, bad, reason="rejected", local_rollback=note_and_break)
    assert column(stores, "status", bad) == "PROCESSING"


def test_withdrawn_claim_leaves_its_rows_unchanged(stores: Stores) -> None:
    settled, *written = write(stores, *(envelope("same") for _ in range(3)))
    stores.outbox.settle(claim(stores, limit=1).token, Settlement(processed=[settled]))
    lost = claim(stores)
    assert stores.outbox.withdraw(relay="somebody else", renamed="nobody") == 0
    assert stores.outbox.withdraw(relay="me", renamed="me again") == 2
    assert stores.outbox.withdraw(relay="me", renamed="me again") == 0
    assert stores.outbox.settle(lost.token, Settlement(processed=written)) == 0
    assert [column(stores, "lease_until", event_id) for event_id in written] == [None, None]
    again = stores.outbox.claim(relay="me again", limit=100)
    assert ids(again) == written
    assert {(event.attempts, event.unconfirmed) for event in again.events} == {(1, False)}


def test_a_claim_that_comes_after_its_withdrawal_finds_nothing(stores: Stores) -> None:
    written = write(stores, envelope())
    held = stores.leases.renew(relay="me", lease=LEASE)
    stores.outbox.withdraw(relay="me", renamed="me again")
    assert ids(claim(stores)) == []
    assert ids(stores.outbox.claim(relay="me again", limit=100)) == written
    # The relay is the same: it keeps its entry and its shards.
    stores.leases.leave(relay="me")
    renewed = stores.leases.renew(relay="me again", lease=LEASE)
    assert (renewed.shards, renewed.relays) == (held.shards, 1)


def test_failing_with_a_stale_token_does_nothing(stores: Stores) -> None:
    [event_id] = write(stores, envelope())
    claim(stores)
    calls: list[Session] = []
    assert not stores.outbox.fail(uuid4(), event_id, reason="x", local_rollback=calls.append)
    assert calls == []


def test_a_business_key_is_refused_the_second_time(stores: Stores) -> None:
    write(stores, envelope(biz_key="once"))
    with pytest.raises(EventRefused, match="once") as refusal:
        write(stores, envelope(biz_key="once"))
    assert refusal.value.field == "biz_key"
    write(stores, envelope(biz_key="once", type="things.else"))


@pytest.mark.begun_by_hand
def test_relays_share_the_shards_evenly_and_take_free_ones(stores: Stores) -> None:
    assert len(stores.leases.renew(relay="one", lease=LEASE).shards) == SHARDS
    joined = stores.leases.renew(relay="two", lease=LEASE)
    assert (joined.shards, joined.relays) == (frozenset(), 2)
    crowded = stores.leases.renew(relay="one", lease=LEASE)
    assert len(crowded.surplus) == SHARDS // 2
    stores.leases.release(relay="one", shards=crowded.surplus)
    assert stores.leases.renew(relay="two", lease=LEASE).shards == crowded.surplus
    stores.leases.leave(relay="one")
    assert len(stores.leases.renew(relay="two", lease=LEASE).shards) == SHARDS


def test_an_expired_lease_can_be_taken_by_any_relay(
    stores: Stores, eventually: Callable[..., None]
) -> None:
    stores.leases.renew(relay="dead", lease=timedelta(milliseconds=200))
    eventually(
        lambda: len(stores.leases.renew(relay="heir", lease=LEASE).shards) == SHARDS,
        "the heir has every shard",
    )


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
def test_shard_locked_by_a_claim_does_not_block_a_renewal(stores: Stores) -> None:
    stores.leases.renew(relay="dead", lease=LEASE)
    let_all_leases_run_out(stores)
    impatient = create_engine(stores.engine.url, connect_args={"options": "-c lock_timeout=500"})
    s = stores.tables.shard
    with stores.engine.begin() as claiming:
        claiming.execute(select(s).where(s.c.shard == 0).with_for_update(read=True))
        taken = SqlLeaseStore(impatient, stores.tables).renew(relay="heir", lease=LEASE)
    impatient.dispose()
    assert taken.shards == set(range(1, SHARDS))
    assert stores.leases.renew(relay="heir", lease=LEASE).shards == set(range(SHARDS))


def test_shards_that_a_relay_left_are_not_counted_as_owned(stores: Stores) -> None:
    statement = status.shards(stores.tables, dialect_of(stores.engine.dialect))

    def held() -> int:
        with stores.engine.connect() as connection:
            return int(connection.execute(statement).one().held)

    stores.leases.renew(relay="one", lease=LEASE)
    assert held() == SHARDS
    stores.leases.release(relay="one", shards=frozenset({0}))
    assert held() == SHARDS - 1
    stores.leases.leave(relay="one")
    assert held() == 0


def test_each_change_of_its_owner_gives_a_shard_a_higher_epoch(stores: Stores) -> None:
    s = stores.tables.shard
    epochs: list[int] = []

    def note() -> None:
        with stores.engine.connect() as connection:
            epochs.append(connection.scalars(select(func.min(s.c.epoch))).one())

    note()
    stores.leases.renew(relay="one", lease=LEASE)
    note()
    stores.leases.leave(relay="one")
    stores.leases.renew(relay="two", lease=LEASE)
    note()
    stores.outbox.withdraw(relay="two", renamed="two again")
    note()
    assert epochs == sorted(set(epochs))


def test_row_of_a_relay_with_an_expired_lease_is_unconfirmed(stores: Stores) -> None:
    written = write(stores, envelope())
    stores.leases.renew(relay="dead", lease=LEASE)
    assert [e.unconfirmed for e in stores.outbox.claim(relay="dead", limit=1).events] == [False]
    let_all_leases_run_out(stores)
    taken_over = claim(stores)
    assert ids(taken_over) == written
    assert [e.unconfirmed for e in taken_over.events] == [True]


@pytest.mark.begun_by_hand
def test_only_settled_rows_that_are_old_enough_are_purged(stores: Stores) -> None:
    old, failed, fresh = write(stores, envelope("a"), envelope("b"), envelope("c"))
    token = claim(stores).token
    stores.outbox.settle(token, Settlement(processed=[old, fresh]))
    stores.outbox.fail(token, failed, reason="x", local_rollback=None)
    o = stores.tables.outbox
    long_ago = datetime.now(UTC) - timedelta(days=60)
    with stores.engine.begin() as connection:
        for event_id in (old, failed):
            # An id of that time, so that the walk of the purge reaches the row.
            ancient = UUID(
                int=event_id.int - (int(timedelta(days=60).total_seconds() * 1000) << 80)
            )
            connection.execute(
                o.update()
                .where(o.c.event_id == event_id)
                .values(settled_at=long_ago, event_id=ancient)
            )
    month = timedelta(days=30)
    assert stores.purge.purge_outbox(older_than=month, limit=10).removed == 1
    with stores.engine.connect() as connection:
        left = connection.execute(select(o.c.status).order_by(o.c.status)).scalars().all()
    assert left == ["FAILED", "PROCESSED"]
