"""The demo's audit: it accepts correct books, and reports every way to corrupt them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, text
from sqlalchemy.orm import Session

from examples.retail.audit import Audit, judge, read_books
from examples.retail.baskets import Basket, first_baskets
from examples.retail.events import Line, OrderPlaced
from examples.retail.opening import deliveries
from examples.retail.stage import PROJECT
from examples.retail.topics import TopicRecord
from shieldtx import Event
from shieldtx.store.schema_settings import DEFAULT_SHARDS
from tests.support.migrated_databases import MigratedDatabases

TOPIC = "orders.placed.commit"
REFUSED = 13
APPLE, BREAD = 1, 2


def basket(number: int, household: int, **quantities: int) -> Basket:
    products = {"apples": APPLE, "breads": BREAD}
    lines = [
        Line(product_id=products[name], quantity=quantity, cents=100 * quantity)
        for name, quantity in quantities.items()
    ]
    return Basket(id=number, household_id=household, lines=tuple(lines))


BASKETS = (
    basket(11, 1, apples=2, breads=1),
    basket(21, 2, breads=1),
    basket(12, 1, apples=1),
    basket(REFUSED, 1, apples=9),
    basket(22, 2, apples=1, breads=2),
)


@dataclass
class World:
    """The databases of both services and the commit topic, after all baskets."""

    orders: Engine
    stock: Engine
    records: list[TopicRecord] = field(default_factory=list)

    def audit(self) -> Audit:
        with self.orders.connect() as orders, self.stock.connect() as stock:
            return judge(read_books(orders, stock, self.records))

    def record_of(self, basket_id: int) -> TopicRecord:
        return next(record for record in self.records if record.basket_id == basket_id)


@pytest.fixture(scope="module")
def services() -> Iterator[Any]:
    """Both services, whose handlers use the sessions that a test provides."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SHIELDTX_SOURCE", "retail")
        environment.setenv("SHIELDTX_DATABASE_URL", "postgresql+psycopg://nowhere/nothing")
        environment.setenv("SHIELDTX_RELAY_WAKEUP", "false")
        from examples.retail import orders, stock

        yield orders, stock


@pytest.fixture
def world(services: Any, databases: MigratedDatabases) -> Iterator[World]:
    with ExitStack() as closing:
        engines = []
        for _ in services:
            url = closing.enter_context(databases.database(DEFAULT_SHARDS))
            engines.append(create_engine(url))
            closing.callback(engines[-1].dispose)
        yield played(World(*engines), *services)


def played(world: World, orders: Any, stock: Any) -> World:
    """Let the services handle all baskets, as relays and consumers would."""
    for service, engine in ((orders, world.orders), (stock, world.stock)):
        service.Base.metadata.create_all(engine)
    with Session(world.orders) as session, session.begin():
        session.execute(insert(orders.Account), [{"household_id": h} for h in (1, 2)])
    with Session(world.stock) as session, session.begin():
        stocked = [{"id": p, "delivered": 6, "on_hand": 6} for p in (APPLE, BREAD)]
        session.execute(insert(stock.Product), stocked)
    for offset, one in enumerate(BASKETS):
        with Session(world.orders) as session, session.begin():
            placed: OrderPlaced = orders.place(session, one)
        world.records.append(
            TopicRecord(
                topic=TOPIC,
                partition=placed.household_id,
                offset=offset,
                household_id=placed.household_id,
                basket_id=placed.basket_id,
            )
        )
        event = Event(type="orders.placed", payload=placed)
        try:
            with Session(world.stock) as session, session.begin():
                stock.reserve(session, event)
        except stock.OutOfStock:
            with Session(world.orders) as session, session.begin():
                orders.cancel(session, event)
    return world


def test_correct_books_pass_the_audit(world: World) -> None:
    audit = world.audit()

    assert audit.failures == []
    assert len(audit.books.placed) == len(audit.books.records) == 5
    assert [effect.basket_id for effect in audit.books.effects] == [11, 21, 12, 22]
    assert [refund.basket_id for refund in audit.books.compensations] == [REFUSED]
    assert (audit.books.charged_cents, audit.books.refunded_cents) == (1700, 900)
    assert audit.books.standing_cents == 800
    assert (audit.books.delivered, audit.books.reserved, audit.books.on_hand) == (12, 8, 4)


def test_duplicate_record_is_counted_but_not_a_failure(world: World) -> None:
    world.records.append(replace(world.record_of(11), offset=99))

    audit = world.audit()

    assert audit.duplicates == 1
    assert audit.failures == []


def in_orders(statement: str) -> Callable[[World], None]:
    return lambda world: _execute(world.orders.begin, statement)


def in_stock(statement: str) -> Callable[[World], None]:
    return lambda world: _execute(world.stock.begin, statement)


def _execute(begin: Callable[[], Any], statements: str) -> None:
    connection: Connection
    with begin() as connection:
        for statement in statements.split(";"):
            connection.execute(text(statement))


def lose_a_record(world: World) -> None:
    world.records.remove(world.record_of(12))


def swap_two_records(world: World) -> None:
    first, second = world.record_of(11), world.record_of(12)
    world.records.remove(first)
    world.records.insert(world.records.index(second) + 1, replace(first, offset=99))


def scatter_a_household(world: World) -> None:
    last = world.record_of(22)
    world.records.remove(last)
    world.records.append(replace(last, partition=7))


def invent_a_record(world: World) -> None:
    world.records.append(replace(world.record_of(11), basket_id=999, offset=99))


@pytest.mark.parametrize(
    ("spoil", "failures"),
    [
        (lose_a_record, ["orders that were lost: 1"]),
        (
            in_stock(
                "DELETE FROM reserved_line WHERE reservation_id IN "
                "(SELECT id FROM reservation WHERE basket_id = 12);"
                "DELETE FROM reservation WHERE basket_id = 12"
            ),
            ["orders that were lost: 1", "products that do not balance: 1"],
        ),
        (
            in_orders(
                "UPDATE orders SET cancelled = false WHERE basket_id = 13;"
                "DELETE FROM payment WHERE cents < 0;"
                "UPDATE account SET owed_cents = owed_cents + 900 WHERE household_id = 1"
            ),
            ["orders that were lost: 1", "products that do not balance: 1"],
        ),
        (
            in_stock("INSERT INTO reservation (basket_id, household_id, number) VALUES (11, 1, 1)"),
            ["effects that were doubled: 1"],
        ),
        (
            in_orders("INSERT INTO payment (household_id, basket_id, cents) VALUES (1, 13, -900)"),
            ["effects that were doubled: 1", "accounts that do not balance: 1"],
        ),
        (
            in_stock("INSERT INTO reservation (basket_id, household_id, number) VALUES (13, 1, 3)"),
            ["effects that were doubled: 1"],
        ),
        (swap_two_records, ["orders that overtook another one of their household: 1"]),
        (scatter_a_household, ["orders that overtook another one of their household: 1"]),
        (
            in_stock("UPDATE reservation SET number = 3 - number WHERE household_id = 1"),
            ["orders that overtook another one of their household: 1"],
        ),
        (invent_a_record, ["orders that were never placed: 1"]),
        (
            in_orders("UPDATE account SET owed_cents = owed_cents + 1 WHERE household_id = 2"),
            ["accounts that do not balance: 1"],
        ),
        (
            in_stock("UPDATE product SET on_hand = on_hand + 1 WHERE id = 1"),
            ["products that do not balance: 1"],
        ),
    ],
    ids=[
        "a lost record",
        "a lost effect",
        "a refusal that was never compensated",
        "an effect twice",
        "a compensation twice",
        "an effect and a compensation",
        "records out of order",
        "a household in two partitions",
        "effects out of order",
        "a record of nobody's order",
        "money from nowhere",
        "goods from nowhere",
    ],
)
def test_audit_reports(spoil: Callable[[World], None], failures: list[str], world: World) -> None:
    spoil(world)

    assert world.audit().failures == failures


@pytest.mark.parametrize(
    "park",
    [
        """
        INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, reason,
                                   record_headers, parked_at)
        VALUES ('stock', 'orders.placed.commit', 2, 5, '', '[]', now())
        """,
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now() WHERE biz_key = '31'",
    ],
    ids=["whose record could not be read", "whose event could not be sent"],
)
def test_parked_order_is_not_lost(park: str, services: Any, world: World) -> None:
    orders, _ = services
    with Session(world.orders) as session, session.begin():
        orders.place(session, basket(31, 2, apples=1))
    assert world.audit().failures[0] == "orders that were lost: 1"
    world.records.append(replace(world.record_of(22), basket_id=31, offset=5))

    in_orders(park)(world)

    audit = world.audit()
    assert audit.books.parked == {31}
    assert audit.failures == []


def test_first_baskets_are_real_and_in_order() -> None:
    baskets = first_baskets(300)

    assert len({one.id for one in baskets}) == 300
    assert baskets[0] == Basket(
        id=31198570044,
        household_id=900,
        lines=(Line(product_id=1095275, quantity=1, cents=50),),
    )
    assert all(line.quantity > 0 and line.cents >= 0 for one in baskets for line in one.lines)
    with pytest.raises(ValueError, match="not 1000000"):
        first_baskets(1_000_000)


def test_only_popular_products_are_delivered_below_demand() -> None:
    baskets = [basket(number, 1, apples=1) for number in range(100)]

    assert deliveries([*baskets, basket(100, 1, breads=3)]) == {APPLE: 94, BREAD: 3}


def test_opening_a_service_twice_changes_nothing(database_url: str) -> None:
    engine = create_engine(database_url)
    environment = {
        **os.environ,
        "SHIELDTX_SOURCE": "stock",
        "SHIELDTX_DATABASE_URL": database_url,
    }
    command = [sys.executable, "-m", "examples.retail.opening", "stock", "--baskets", "50"]

    def open_stock() -> tuple[int, int]:
        subprocess.run(command, cwd=PROJECT, env=environment, check=True, timeout=60)
        with engine.connect() as connection:
            row = connection.execute(text("SELECT count(*), sum(on_hand) FROM product")).one()
        return tuple(row)

    once = open_stock()

    assert once[0] > 100
    assert open_stock() == once
    engine.dispose()
