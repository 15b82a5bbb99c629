"""The number of shards belongs to the tables: a process with another number is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx import Event, ShieldTx, new_event_id
from shieldtx.domain.events import shard_of
from shieldtx.errors import ConfigurationError
from tests.support.service import Service, drain, make_topics

OTHER_NUMBER = r"SHIELDTX_SHARDS is {}, but shield_outbox was made for 8 shards"


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    service.app.declare("orders.placed")
    make_topics(service)
    return service


def another_process(service: Service, shards: int | None) -> ShieldTx:
    """The service in a process with another setting."""
    settings = service.app.settings.model_copy(update={"shards": shards})
    app = ShieldTx(settings, engine=service.engine, broker=service.app.broker)
    app.declare("orders.placed")
    return app


def placed(number: int = 0) -> Event:
    return Event(type="orders.placed", payload=number, key=f"key {number}")


def add_on_a_session(app: ShieldTx) -> None:
    with Session(app.engine) as session, session.begin():
        app.outbox.add(session, placed())


def add_on_a_connection(app: ShieldTx) -> None:
    with app.engine.begin() as connection:
        app.outbox.add(connection, placed())


def add_on_an_asynchronous_session(app: ShieldTx) -> None:
    async def add() -> None:
        engine = create_async_engine(app.engine.url)
        async with AsyncSession(engine) as session, session.begin():
            app.outbox.add(session, placed())
        await engine.dispose()

    asyncio.run(add())


def prepare_a_half_message(app: ShieldTx) -> None:
    app.half_prepare("orders.placed")


WAYS = [
    add_on_a_session,
    add_on_a_connection,
    add_on_an_asynchronous_session,
    prepare_a_half_message,
]


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("shards", [4, 64])
def test_a_writer_with_another_number_is_refused(
    orders: Service, write: Callable[[ShieldTx], Any], shards: int
) -> None:
    other = another_process(orders, shards)

    with pytest.raises(ConfigurationError, match=OTHER_NUMBER.format(shards)):
        write(other)

    assert orders.outbox() == {}


@pytest.mark.parametrize("write", WAYS)
def test_writer_without_the_setting_uses_the_tables_number(
    orders: Service, write: Callable[[ShieldTx], Any]
) -> None:
    write(another_process(orders, None))

    assert orders.rows("SELECT count(*), max(shard) < 8 FROM shield_outbox") == [(1, True)]


def test_events_written_without_the_setting_are_sent(orders: Service) -> None:
    app = another_process(orders, None)
    with Session(orders.engine) as session, session.begin():
        app.outbox.add_all(session, map(placed, range(50)))

    drain(orders.relay())

    assert orders.outbox() == {"PROCESSED": 50}


def test_number_of_shards_is_read_once(orders: Service) -> None:
    app = another_process(orders, None)
    for _ in range(2):
        add_on_a_session(app)
        # From here on, only the number that the process has read exists.
        orders.execute(
            "ALTER TABLE shield_outbox DROP CONSTRAINT IF EXISTS shield_outbox_shard_check"
        )

    assert orders.outbox() == {"INIT": 2}


def test_a_relay_with_another_number_is_refused(orders: Service) -> None:
    with pytest.raises(ConfigurationError, match=OTHER_NUMBER.format(64)):
        another_process(orders, 64).build_relay().renew()

    assert another_process(orders, None).build_relay().renew().shards == frozenset(range(8))


def test_relay_refuses_a_shard_without_a_lease_row(orders: Service) -> None:
    orders.execute("DELETE FROM shield_shard WHERE shard = 3")

    with pytest.raises(ConfigurationError, match="made for 8 shards, but shield_shard has 7 rows"):
        orders.app.build_relay().renew()


def test_the_table_refuses_a_row_of_another_shard(orders: Service) -> None:
    add_on_a_session(orders.app)

    for shard in (-1, 8):
        with pytest.raises(IntegrityError, match="shield_outbox_shard_check"):
            orders.execute("UPDATE shield_outbox SET shard = :shard", shard=shard)


def test_tables_that_were_recreated_under_a_writer_are_noticed(orders: Service) -> None:
    app = another_process(orders, None)
    add_on_a_session(app)
    orders.app.schema.downgrade("base")
    another_process(orders, 1).schema.upgrade()

    event = next(e for e in map(placed, range(100)) if shard_of(e.key, e.id, 8) > 0)
    with (
        pytest.raises(ConfigurationError, match="another number of shards than the 8"),
        Session(orders.engine) as session,
        session.begin(),
    ):
        app.outbox.add(session, event)
    add_on_a_session(app)

    assert orders.rows("SELECT shard FROM shield_outbox") == [(0,)]


def test_recreated_tables_of_half_messages_are_detected(orders: Service) -> None:
    app = another_process(orders, None)
    prepare_a_half_message(app)
    orders.app.schema.downgrade("base")
    another_process(orders, 1).schema.upgrade()

    key = next(k for k in map(str, range(100)) if shard_of(k, new_event_id(), 8) > 0)
    with pytest.raises(ConfigurationError, match="another number of shards than the 8"):
        app.half_prepare("orders.placed", key=key)
    app.half_prepare("orders.placed", key=key)

    assert orders.rows("SELECT shard FROM shield_outbox") == [(0,)]


def test_tables_without_the_number_are_to_be_upgraded(orders: Service) -> None:
    orders.app.schema.downgrade("0006")

    with pytest.raises(ConfigurationError, match="run `shieldtx db upgrade`"):
        add_on_a_session(orders.app)


def test_reading_the_number_leaves_the_callers_transaction_alone(orders: Service) -> None:
    app = another_process(orders, None)
    with Session(orders.engine) as session, session.begin():
        app.outbox.add(session, placed())
        # Only a transaction without an earlier statement may do this.
        session.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
        assert session.scalar(select(1)) == 1

    assert orders.outbox() == {"INIT": 1}
