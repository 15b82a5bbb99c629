"""The sequence of events follows the locks of their business rows, not the calls of `add`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy import insert, text, update

from shieldtx import Event
from tests.conftest import Eventually
from tests.support.write_side_shop import Order, Shop


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_waiting_for_a_lock(shop: Shop) -> bool:
    with shop.engine.connect() as connection:
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return connection.scalar(waiting) == 1


def test_later_change_of_a_row_has_the_later_event(postgres_shop: Shop, eventually: Eventually):
    shop = postgres_shop
    with shop.engine.begin() as connection:
        connection.execute(insert(Order).values(id=1))

    def second() -> None:
        with shop.session() as session, session.begin():
            # Added before any lock: the event must not get its number here.
            shop.outbox.add(session, Event(type="order.placed", key="second"))
            session.add(Order(id=2))
            session.flush()
            session.execute(update(Order).where(Order.id == 1).values(note="second"))

    with shop.session() as session, session.begin():
        session.execute(update(Order).where(Order.id == 1).values(note="first"))
        other = in_thread(second)
        eventually(lambda: is_waiting_for_a_lock(shop), "the other waits for the row")
        shop.outbox.add(session, Event(type="order.placed", key="first"))
    other.join(timeout=30)
    assert shop.events() == ["first", "second"]


def test_an_orms_change_is_locked_before_its_event_is_numbered(
    postgres_shop: Shop, eventually: Eventually
):
    shop = postgres_shop
    with shop.engine.begin() as connection:
        connection.execute(insert(Order).values(id=1))

    def second() -> None:
        with shop.session() as session, session.begin():
            order = session.get(Order, 1)
            shop.outbox.add(session, Event(type="order.placed", key="second"))
            order.note = "second"

    with shop.session() as session, session.begin():
        order = session.get(Order, 1, with_for_update=True)
        other = in_thread(second)
        eventually(lambda: is_waiting_for_a_lock(shop), "the other waits for the row")
        order.note = "first"
        shop.outbox.add(session, Event(type="order.placed", key="first"))
    other.join(timeout=30)
    assert shop.events() == ["first", "second"]


def test_events_of_one_transaction_keep_the_order_of_add_calls(postgres_shop: Shop):
    keys = [str(number) for number in range(500)]
    with postgres_shop.session() as session, session.begin():
        for key in keys:
            postgres_shop.outbox.add(session, Event(type="order.placed", key=key))
    assert postgres_shop.events() == keys
