"""Statements that end a transaction without SQLAlchemy: no event is lost or outlives its data."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.errors import TransactionRefused
from tests.support.write_side_shop import Order, Shop


@pytest.mark.parametrize("statement", ["COMMIT", "/* billing */ end work", "rollback"])
def test_a_statement_does_not_end_a_transaction_with_events(shop: Shop, statement: str) -> None:
    with shop.session() as session:
        session.add(Order(id=1))
        session.flush()
        shop.outbox.add(session, Event(type="order.placed", key="1"))

        with pytest.raises(TransactionRefused, match="would end the transaction"):
            session.execute(text(statement))
        session.commit()

    assert shop.orders() == [1]
    assert shop.events() == ["1"]


def test_a_statement_ends_a_transaction_whose_events_are_written(shop: Shop) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        session.add(Order(id=1))
        session.flush()
        shop.outbox.add(session, Event(type="order.placed", key="1"))

        session.execute(text("COMMIT"))
        session.rollback()

    assert shop.orders() == [1]
    assert shop.events() == ["1"]


def test_a_savepoint_is_rolled_back_by_a_statement(shop: Shop) -> None:
    with shop.session() as session:
        shop.outbox.add(session, Event(type="order.placed", key="1"))
        session.execute(text("SAVEPOINT before"))
        session.add(Order(id=1))
        session.flush()
        session.execute(text("ROLLBACK TO SAVEPOINT before"))
        session.commit()

    assert shop.orders() == []
    assert shop.events() == ["1"]
