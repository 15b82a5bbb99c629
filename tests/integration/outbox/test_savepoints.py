"""Events follow the savepoints of their session: a rollback undoes only the events of its
savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.errors import TransactionRefused
from tests.support.write_side_shop import Order, Shop


@contextmanager
def undone(session: Session) -> Iterator[None]:
    savepoint = session.begin_nested()
    yield
    savepoint.rollback()


@pytest.fixture(params=["flushed", "unflushed"])
def place(request: pytest.FixtureRequest, shop: Shop) -> Callable[[Session, int], None]:
    """Write an order and its event with the same number."""

    def write(session: Session, number: int) -> None:
        shop.outbox.add(session, Event(type="order.placed", key=str(number)))
        session.add(Order(id=number))
        if request.param == "flushed":
            session.flush()

    return write


def agreed(shop: Shop) -> list[int]:
    """Return the committed orders, which must equal the committed events, in their order."""
    assert shop.events() == [str(number) for number in shop.orders()]
    return shop.orders()


def test_rolled_back_savepoint_undoes_only_its_events(shop: Shop, place):
    with shop.session() as session, session.begin():
        place(session, 1)
        with undone(session):
            place(session, 2)
        place(session, 3)
    assert agreed(shop) == [1, 3]


def test_released_savepoint_keeps_its_events(shop: Shop, place):
    with shop.session() as session, session.begin():
        place(session, 1)
        with session.begin_nested():
            place(session, 2)
        place(session, 3)
    assert agreed(shop) == [1, 2, 3]


def test_released_savepoint_is_undone_with_its_outer_savepoint(shop: Shop, place):
    with shop.session() as session, session.begin():
        place(session, 1)
        with undone(session):
            place(session, 2)
            with session.begin_nested():
                place(session, 3)
            place(session, 4)
        place(session, 5)
    assert agreed(shop) == [1, 5]


def test_rolled_back_inner_savepoint_is_undone_alone(shop: Shop, place):
    with shop.session() as session, session.begin(), session.begin_nested():
        place(session, 1)
        with undone(session):
            place(session, 2)
        place(session, 3)
    assert agreed(shop) == [1, 3]


def test_rolled_back_transaction_undoes_released_savepoints(shop: Shop, place):
    with shop.session() as session:
        with session.begin_nested():
            place(session, 1)
        session.rollback()
        place(session, 2)
        session.commit()
    assert agreed(shop) == [2]


def test_outer_savepoint_rollback_undoes_an_open_inner_one(shop: Shop, place):
    with shop.session() as session, session.begin():
        place(session, 1)
        outer = session.begin_nested()
        place(session, 2)
        session.begin_nested()
        place(session, 3)
        outer.rollback()
        place(session, 4)
    assert agreed(shop) == [1, 4]


@pytest.mark.parametrize("ending", ["session", "transaction", "block"])
def test_commit_releases_an_open_savepoint_with_its_events(shop, place, ending):
    with shop.session() as session:
        transaction = session.begin()
        place(session, 1)
        session.begin_nested()
        place(session, 2)
        session.begin_nested()
        place(session, 3)
        if ending == "session":
            session.commit()
        elif ending == "transaction":
            transaction.commit()
        else:
            with transaction:
                place(session, 4)
    assert agreed(shop) == ([1, 2, 3, 4] if ending == "block" else [1, 2, 3])


def test_an_event_survives_the_savepoint_in_which_it_was_flushed(shop: Shop):
    with shop.session() as session, session.begin():
        # The session has nothing to flush here: the event waits for the flush inside the savepoint.
        shop.outbox.add(session, Event(type="order.placed", key="before"))
        with undone(session):
            session.add(Order(id=1))
            session.flush()
    assert shop.events() == ["before"]


def test_event_survives_the_savepoint_of_another_events_cancel(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.add(session, Event(type="order.placed", key="before"))
        later = shop.outbox.add(
            session, Event(type="order.placed", key="later"), delay=timedelta(hours=1)
        )
        with undone(session):
            assert shop.outbox.cancel(session, later)
            shop.outbox.add(session, Event(type="order.placed", key="gone"))
        shop.outbox.add(session, Event(type="order.placed", key="after"))
    assert [(r["key"], r["status"]) for r in shop.rows()] == [
        ("before", "INIT"),
        ("later", "INIT"),
        ("after", "INIT"),
    ]


def test_failed_flush_in_a_savepoint_undoes_only_its_events(shop: Shop):
    def write_the_same_again(session: Session) -> None:
        with session.begin_nested():
            shop.outbox.add(session, Event(type="order.placed", key="inside"))
            session.add(Order(id=2, note="same"))
            session.flush()

    with shop.session() as session, session.begin():
        session.add(Order(id=1, note="same"))
        shop.outbox.add(session, Event(type="order.placed", key="before"))
        with pytest.raises(IntegrityError):
            write_the_same_again(session)
        shop.outbox.add(session, Event(type="order.placed", key="after"))
    assert (shop.orders(), shop.events()) == ([1], ["before", "after"])


def test_events_follow_the_savepoints_of_a_connection(shop: Shop):
    with shop.engine.begin() as connection:
        shop.outbox.add(connection, Event(type="order.placed", key="1"))
        connection.execute(insert(Order).values(id=1))
        savepoint = connection.begin_nested()
        shop.outbox.add(connection, Event(type="order.placed", key="2"))
        connection.execute(insert(Order).values(id=2))
        savepoint.rollback()
    assert agreed(shop) == [1]


def refuse_event(shop: Shop, session: Session) -> None:
    with pytest.raises(TransactionRefused, match=r"session\.begin_nested"):
        shop.outbox.add(session, Event(type="order.placed", key="inside"))


def add_in_and_after_a_savepoint(shop: Shop, session: Session) -> None:
    """Add an event inside of a savepoint of the connection, which is refused, and one after it."""
    savepoint = session.connection().begin_nested()
    refuse_event(shop, session)
    savepoint.rollback()
    shop.outbox.add(session, Event(type="order.placed", key="after"))


def test_savepoint_unknown_to_the_session_is_refused(shop: Shop):
    with shop.session() as session, session.begin():
        add_in_and_after_a_savepoint(shop, session)
    assert shop.events() == ["after"]


def test_connections_savepoint_inside_the_sessions_is_refused(shop: Shop):
    with shop.session() as session, session.begin(), session.begin_nested():
        session.execute(insert(Order).values(id=1))
        add_in_and_after_a_savepoint(shop, session)
    assert shop.events() == ["after"]


def test_connections_savepoint_around_the_sessions_is_refused(shop: Shop):
    with shop.session() as session, session.begin():
        savepoint = session.connection().begin_nested()
        with session.begin_nested():
            session.execute(insert(Order).values(id=1))
            refuse_event(shop, session)
        savepoint.rollback()
        shop.outbox.add(session, Event(type="order.placed", key="after"))
    assert (shop.orders(), shop.events()) == ([], ["after"])


STEPS = st.lists(
    st.sampled_from(["begin", "event", "place", "flush", "release", "undo"]),
    min_size=4,
    max_size=20,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.sampled_from(["commit", "rollback", "close"]))
def test_data_and_events_agree_after_any_series_of_steps(postgres_shop: Shop, steps, ending):
    shop = postgres_shop
    shop.clear()
    with shop.session() as session:
        for number, step in enumerate(steps):
            nested = session.get_nested_transaction()
            if step == "begin":
                session.begin_nested()
            elif step == "event":
                # The connection writes the row of this event, so the session has nothing to flush.
                shop.outbox.add(session, Event(type="order.placed", key=str(number)))
                session.connection().execute(insert(Order).values(id=number))
            elif step in {"place", "flush"}:
                session.add(Order(id=number))
                shop.outbox.add(session, Event(type="order.placed", key=str(number)))
                if step == "flush":
                    session.flush()
            elif nested is not None:
                nested.commit() if step == "release" else nested.rollback()
        getattr(session, ending)()
    agreed(shop)
    assert ending == "commit" or shop.orders() == []
