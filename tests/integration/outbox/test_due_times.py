"""When an event is due by choice, and how it is cancelled before that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import update

from shieldtx import Event, EventRefused, OutboxStatus, new_event_id
from shieldtx.errors import TransactionRefused
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.shard_leases import SqlLeaseStore
from tests.support.write_side_shop import Shop

HOUR = timedelta(hours=1)


def placed(key: str = "a") -> Event:
    return Event(type="order.placed", key=key)


def write(shop: Shop, **due):
    with shop.session() as session, session.begin():
        return shop.outbox.add(session, placed(), **due)


def pass_its_due_time(shop: Shop) -> None:
    o = shop.tables.outbox
    with shop.engine.begin() as connection:
        connection.execute(update(o).values(due_at=datetime.now(UTC) - HOUR))


def claimed(shop: Shop) -> list[str | None]:
    """Return the keys of the events that a relay claims now."""
    SqlLeaseStore(shop.engine, shop.tables).renew(relay="r", lease=HOUR)
    store = SqlRelayStore(shop.engine, shop.tables)
    return [c.envelope.key for c in store.claim(relay="r", limit=10).events]


@pytest.mark.parametrize("due", [{}, {"delay": timedelta(0)}, {"delay": None, "at": None}])
def test_an_event_is_due_at_once_by_default(shop: Shop, due):
    write(shop, **due)
    (row,) = shop.rows()
    assert abs(row["due_at"] - row["created_at"]) < timedelta(seconds=5)
    assert claimed(shop) == ["a"]


def test_a_delay_counts_from_the_writing_by_the_databases_clock(shop: Shop):
    write(shop, delay=timedelta(days=30, seconds=7))
    (row,) = shop.rows()
    wait = row["due_at"] - row["created_at"]
    assert abs(wait - timedelta(days=30, seconds=7)) < timedelta(seconds=1)
    assert claimed(shop) == []


def test_a_time_is_kept_to_the_microsecond_whatever_its_zone(shop: Shop):
    at = datetime(2199, 2, 28, 23, 30, 1, 123_456, tzinfo=timezone(timedelta(hours=-5)))
    write(shop, at=at)
    assert shop.rows()[0]["due_at"] == at
    assert claimed(shop) == []


def test_a_time_that_has_passed_is_due_at_once(shop: Shop):
    write(shop, at=datetime(2001, 1, 1, tzinfo=UTC))
    assert claimed(shop) == ["a"]


def test_a_delayed_event_blocks_no_event_of_its_key(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.add(session, placed("same"), delay=HOUR)
        shop.outbox.add(session, placed("same"))
    assert claimed(shop) == ["same"]


@pytest.mark.parametrize(
    ("due", "field", "problem"),
    [
        ({"delay": HOUR, "at": datetime.now(UTC)}, "delay", "either delay= or at="),
        ({"delay": timedelta(microseconds=-1)}, "delay", "is in the past"),
        ({"delay": timedelta.max}, "delay", "too far"),
        ({"at": datetime(2030, 1, 1)}, "at", "no time zone"),  # noqa: DTZ001  what is refused
        ({"at": datetime.max.replace(tzinfo=timezone(-HOUR))}, "at", "too near"),
    ],
)
def test_invalid_due_time_is_refused_by_name(shop: Shop, due, field, problem):
    with shop.session() as session:
        with pytest.raises(EventRefused, match=problem) as caught:
            shop.outbox.add(session, placed(), **due)
        with pytest.raises(EventRefused):
            shop.outbox.add(session.connection(), placed(), **due)
        session.commit()
    assert caught.value.field == field
    assert shop.events() == []


@pytest.mark.parametrize("field", ["delay", "at"])
def test_a_delayed_event_can_be_cancelled_once_before_it_is_due(shop: Shop, field):
    event_id = write(shop, **{field: HOUR if field == "delay" else datetime.now(UTC) + HOUR})
    with shop.engine.begin() as connection:
        assert shop.outbox.cancel(connection, event_id)
        assert not shop.outbox.cancel(connection, event_id)
    (row,) = shop.rows()
    assert row["status"] == OutboxStatus.DISCARDED
    assert row["settled_at"] is not None
    pass_its_due_time(shop)
    assert claimed(shop) == []


def test_a_cancellation_that_is_rolled_back_did_not_happen(shop: Shop):
    event_id = write(shop, delay=HOUR)
    with shop.session() as session:
        assert shop.outbox.cancel(session, event_id)
        session.rollback()
    assert shop.rows()[0]["status"] == OutboxStatus.INIT
    pass_its_due_time(shop)
    assert claimed(shop) == ["a"]


def test_due_event_cannot_be_cancelled(shop: Shop):
    event_id = write(shop, delay=HOUR)
    pass_its_due_time(shop)
    with shop.session() as session, session.begin():
        assert not shop.outbox.cancel(session, event_id)
    assert claimed(shop) == ["a"]


def test_an_event_without_a_chosen_delay_cannot_be_cancelled(shop: Shop):
    event_id = write(shop)
    with shop.session() as session, session.begin():
        assert not shop.outbox.cancel(session, event_id)
        assert not shop.outbox.cancel(session, new_event_id())
    assert claimed(shop) == ["a"]


def test_event_that_waits_in_its_session_can_be_cancelled(shop: Shop):
    with shop.session() as session, session.begin():
        event_id = shop.outbox.add(session, placed("cancelled"), delay=HOUR)
        shop.outbox.add(session, placed("kept"))
        assert shop.outbox.cancel(session, event_id)
    assert [(r["key"], r["status"]) for r in shop.rows()] == [
        ("cancelled", OutboxStatus.DISCARDED),
        ("kept", OutboxStatus.INIT),
    ]


def test_cancelling_needs_a_transaction_as_adding_does(shop: Shop):
    with pytest.raises(TransactionRefused, match="not on a str"):
        shop.outbox.cancel("session", new_event_id())
    with (
        shop.session(autobegin=False) as session,
        pytest.raises(TransactionRefused, match=r"call session\.begin"),
    ):
        shop.outbox.cancel(session, new_event_id())
