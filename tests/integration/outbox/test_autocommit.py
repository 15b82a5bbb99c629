"""Where each statement would commit by itself, an event is refused before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, event, insert
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.errors import TransactionRefused
from shieldtx.outbox.publish_decorator import Publication, publish_decorator
from tests.support.write_side_shop import Order, Shop

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


def by_the_engines_making(url: str) -> Engine:
    return create_engine(url, **AUTOCOMMIT)


def by_an_option_of_the_engine(url: str) -> Engine:
    return create_engine(url).execution_options(**AUTOCOMMIT)


def by_the_driver(url: str) -> Engine:
    engine = create_engine(url)

    def commit_each(connection, record) -> None:
        if engine.dialect.name == "postgresql":
            connection.autocommit = True
        else:
            connection.isolation_level = None

    event.listen(engine, "connect", commit_each)
    return engine


def url_of(shop: Shop) -> str:
    return shop.engine.url.render_as_string(hide_password=False)


@pytest.fixture(
    params=[by_the_engines_making, by_an_option_of_the_engine, by_the_driver],
    ids=lambda way: way.__name__,
)
def autocommitting(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Engine]:
    engine = request.param(url_of(shop))
    yield engine
    engine.dispose()


@pytest.fixture
def plain(shop: Shop) -> Iterator[Engine]:
    """An engine with the default settings."""
    engine = create_engine(url_of(shop))
    yield engine
    engine.dispose()


def add(shop: Shop, transaction) -> None:
    with pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
        shop.outbox.add(transaction, Event(type="order.placed", key="a"))


def test_an_engine_in_autocommit_is_refused(shop: Shop, autocommitting: Engine):
    with Session(autocommitting) as session:
        session.add(Order(id=1))
        add(shop, session)
        with pytest.raises(TransactionRefused):
            shop.outbox.cancel(session, Event(type="order.placed").id)
    with autocommitting.connect() as connection:
        add(shop, connection)
    with autocommitting.begin() as connection:
        add(shop, connection)
    assert (shop.orders(), shop.events()) == ([], [])


def test_decorated_method_in_autocommit_does_not_run(shop: Shop, autocommitting: Engine):
    @publish_decorator(lambda: shop.outbox, Publication(event_type="order.placed"))
    def place(transaction) -> int:
        transaction.execute(insert(Order).values(id=1))
        return 1

    with Session(autocommitting) as session, pytest.raises(TransactionRefused):
        place(session)
    with autocommitting.connect() as connection, pytest.raises(TransactionRefused):
        place(connection)
    assert (shop.orders(), shop.events()) == ([], [])


def test_a_connection_set_to_autocommit_is_refused(shop: Shop, plain: Engine):
    with plain.connect().execution_options(**AUTOCOMMIT) as connection:
        add(shop, connection)
        with Session(bind=connection) as session:
            session.add(Order(id=1))
            add(shop, session)
    with Session(plain) as session:
        session.connection(execution_options=AUTOCOMMIT)
        session.add(Order(id=1))
        add(shop, session)
    assert (shop.orders(), shop.events()) == ([], [])


def test_ordinary_engine_takes_events(shop: Shop, plain: Engine):
    with plain.connect() as connection:
        shop.outbox.add(connection, Event(type="order.placed", key="alone"))
        connection.commit()
    with Session(plain) as session:
        shop.outbox.add(session, Event(type="order.placed", key="alone too"))
        session.commit()
    with Session(plain) as session:
        session.add(Order(id=1))
        shop.outbox.add(session, Event(type="order.placed", key="gone"))
        session.flush()
        session.rollback()
    assert (shop.orders(), shop.events()) == ([], ["alone", "alone too"])


def test_no_event_is_cancelled_on_a_connection_in_autocommit(shop: Shop, autocommitting: Engine):
    with shop.session() as session, session.begin():
        event_id = shop.outbox.add(session, Event(type="order.placed"), delay=timedelta(hours=1))
    with (
        pytest.raises(TransactionRefused, match="AUTOCOMMIT"),
        autocommitting.connect() as connection,
    ):
        shop.outbox.cancel(connection, event_id)
    [row] = shop.rows()
    assert row["status"] == "INIT"
