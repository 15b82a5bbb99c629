"""A topic whose backlog is at its limit: adding is refused before anything is written."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from shieldtx import Event
from shieldtx.domain.states import TxKind
from shieldtx.errors import BacklogExceeded, Refused
from shieldtx.outbox.backlog_limit import SAMPLE_EVERY
from shieldtx.outbox.causation import handling
from shieldtx.outbox.publish_decorator import Publication, publish_decorator
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.statements import backlog as sql
from tests.support.log_records import logged
from tests.support.service import Service, drain, make_topics
from tests.support.write_side_shop import SHARDS, Order, Shop

LIMIT = 3


def limited(count: int = 1, **fields) -> list[Event]:
    return [Event(type="limited", payload=n, **fields) for n in range(count)]


@pytest.fixture
def full(shop: Shop) -> Shop:
    """A shop with a topic that is at its limit."""
    shop.event_types.declare("limited", backlog_limit=LIMIT)
    with shop.session() as session, session.begin():
        shop.outbox.add_all(session, limited(LIMIT))
    forget(shop)
    return shop


def forget(shop: Shop) -> None:
    """Discard all samples, as if their age were the maximum."""
    shop.outbox._backlog_limiter._samples.clear()


def waiting(shop: Shop, topic: str = "limited", upto: int = 100) -> int:
    writer = SqlOutboxWriter(shop.tables, shards=SHARDS)
    with shop.engine.connect() as connection:
        return writer.backlog(connection, topic, upto=upto)


def test_add_at_the_limit_is_refused_and_transaction_continues(full: Shop) -> None:
    with full.session() as session, session.begin():
        session.add(Order(id=1))
        with pytest.raises(BacklogExceeded, match="SHIELDTX_BACKLOG_LIMIT") as refused:
            full.outbox.add(session, *limited())
        full.outbox.add(session, Event(type="order.placed"))
    assert (refused.value.topic, refused.value.limit) == ("limited", LIMIT)
    assert full.orders() == [1]
    assert len(full.rows()) == LIMIT + 1


def test_no_event_of_a_call_is_written_if_one_topic_is_at_limit(full: Shop) -> None:
    with full.engine.begin() as connection, pytest.raises(BacklogExceeded):
        full.outbox.add_all(connection, [Event(type="order.placed"), *limited()])
    assert len(full.rows()) == LIMIT


def test_published_method_does_not_run_with_its_topic_at_limit(full: Shop) -> None:
    ran: list[int] = []
    publish = publish_decorator(lambda: full.outbox, Publication(event_type="limited"))
    later = publish_decorator(
        lambda: full.outbox, Publication(event_type="limited", delay=timedelta(hours=1))
    )

    def place(session: object, number: int) -> int:
        ran.append(number)
        return number

    with full.session() as session, session.begin():
        with pytest.raises(BacklogExceeded):
            publish(place)(session, 1)
        later(place)(session, 2)
    assert ran == [2]


def test_a_handler_adds_and_publishes_at_the_limit(full: Shop) -> None:
    publish = publish_decorator(lambda: full.outbox, Publication(event_type="limited"))

    def place(session: object) -> int:
        return 1

    with full.session() as session:
        handling(session, Event(type="basket.filled", source="till"))
        full.outbox.add(session, *limited())
        publish(place)(session)
        session.commit()
    assert len(full.rows()) == LIMIT + 2


def test_events_are_accepted_again_after_the_backlog_is_gone(full: Shop) -> None:
    with full.engine.begin() as connection:
        connection.execute(
            full.tables.outbox.update().values(status="PROCESSED", settled_at=datetime.now(UTC))
        )
    with full.session() as session, session.begin():
        full.outbox.add(session, *limited())
    assert len(full.rows()) == LIMIT + 1


def test_backlog_is_sampled_once_per_interval_for_any_events(shop: Shop) -> None:
    shop.event_types.declare("limited", backlog_limit=1000)
    with shop.session() as session, session.begin():
        # The first event of a process reads the number of shards.
        shop.outbox.add(session, Event(type="order.placed"))
    now = [0.0]
    shop.outbox._backlog_limiter._clock = lambda: now[0]
    with shop.statements() as statements:
        for _ in range(20):
            with shop.session() as session, session.begin():
                shop.outbox.add(session, *limited())
        now[0] += SAMPLE_EVERY
        with shop.session() as session, session.begin():
            shop.outbox.add(session, *limited())
    assert len([s for s in statements if "count(*)" in s]) == 2


def test_transaction_without_a_limit_has_no_extra_statement(shop: Shop) -> None:
    with shop.session() as session, session.begin():
        # The first event of a process reads the number of shards.
        shop.outbox.add(session, Event(type="order.placed"))
    with shop.statements() as statements, shop.session() as session, session.begin():
        shop.outbox.add(session, Event(type="order.placed"))
    assert [s for s in statements if "SELECT" in s.upper()] == []


def test_delayed_events_are_accepted_and_count_when_due(full: Shop) -> None:
    with full.session() as session, session.begin():
        full.outbox.add_all(session, limited(4), delay=timedelta(hours=1))
        full.outbox.add_all(session, limited(2), at=datetime.now(UTC) - timedelta(seconds=1))
    assert waiting(full) == LIMIT + 2


def test_rollback_events_are_always_accepted_and_do_not_count(full: Shop) -> None:
    taken_back = uuid.uuid4()
    with full.session() as session, session.begin():
        full.outbox.add(
            session, *limited(kind=TxKind.ROLLBACK, causation_id=taken_back, causation_source="s")
        )
    assert len(full.rows()) == LIMIT + 1
    assert waiting(full) == LIMIT


def test_waiting_retries_count_for_the_backlog(full: Shop) -> None:
    with full.engine.begin() as connection:
        connection.execute(full.tables.outbox.update().values(waiting=True, holds_key=True))
    assert waiting(full) == LIMIT


def test_counting_stops_at_the_limit_and_reads_bounded_rows(full: Shop) -> None:
    with full.session() as session, session.begin():
        full.outbox.add_all(session, [Event(type="order.placed") for _ in range(50)])
    assert waiting(full, upto=2) == 0, "hidden by more than ten times as many of others"
    assert waiting(full, upto=6) == LIMIT
    assert waiting(full, "order.placed", upto=6) == 6


def test_many_blocked_rows_hide_no_topic_of_another_shard(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.event_types.declare("limited")
    with shop.session() as session, session.begin():
        shop.outbox.add_all(session, [Event(type="order.placed") for _ in range(500)])
        shop.outbox.add_all(session, [Event(type="limited") for _ in range(LIMIT)])
    o = shop.tables.outbox
    with shop.engine.begin() as connection:
        connection.execute(o.update().values(holds_key=True, shard=0))
        connection.execute(o.update().where(o.c.topic == "limited").values(shard=SHARDS - 1))
    assert waiting(shop, upto=LIMIT) == LIMIT
    assert waiting(shop, upto=500) == LIMIT, "each row counts once"
    assert waiting(shop, "order.placed", upto=500) == 500


def test_limit_above_the_scanned_rows_is_counted_completely() -> None:
    assert sql.parameters("t", 10)["scanned"] == 100
    assert sql.parameters("t", 50_000)["scanned"] == sql.MOST_SCANNED
    assert sql.parameters("t", 500_000)["scanned"] == 500_000


def test_a_count_finds_its_rows_by_indexes_alone(postgres_shop: Shop) -> None:
    with postgres_shop.session() as session, session.begin():
        postgres_shop.outbox.add_all(session, [Event(type="order.placed") for _ in range(3000)])
    statement = sql.events(postgres_shop.tables, postgres_shop.dialect)
    compiled = statement.params(sql.parameters("order.placed", 10)).compile(
        postgres_shop.engine, compile_kwargs={"literal_binds": True}
    )
    with postgres_shop.engine.begin() as connection:
        settle = "UPDATE shield_outbox SET status = 'PROCESSED', settled_at = now()"
        connection.execute(text(f"{settle} WHERE mod(seq, 100) <> 0"))
        connection.execute(text("ANALYZE shield_outbox"))
        plan = "\n".join(connection.scalars(text(f"EXPLAIN {compiled}")))
    assert "shield_outbox_ready_idx" in plan, plan
    assert "Seq Scan on shield_outbox" not in plan, plan


def test_async_session_uses_the_samples_of_inserts(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.event_types.declare("limited", backlog_limit=LIMIT)

    async def work() -> None:
        engine = create_async_engine(shop.engine.url)
        async with AsyncSession(engine) as session, session.begin():
            shop.outbox.add_all(session, limited(LIMIT))
        forget(shop)
        async with AsyncSession(engine) as session, session.begin():
            shop.outbox.add(session, *limited())
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(BacklogExceeded):
                shop.outbox.add(session, *limited())
        async with AsyncSession(engine) as session, session.begin():
            forget(shop)
            with pytest.raises(BacklogExceeded):
                await session.run_sync(shop.outbox.add, *limited())
        await engine.dispose()

    asyncio.run(work())
    assert len(shop.rows()) == LIMIT + 1


def test_policy_warn_writes_and_logs_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.event_types.declare("limited", backlog_limit=1, on_backlog="warn")
    with shop.session() as session, session.begin():
        shop.outbox.add(session, *limited())
    forget(shop)
    with caplog.at_level(logging.WARNING), shop.session() as session, session.begin():
        shop.outbox.add(session, *limited())
    assert len(shop.rows()) == 2
    [warning] = logged(caplog.records, "backlog_at_limit")
    assert (warning["count"], warning["limit"], warning["on_backlog"]) == (1, 1, "warn")


def test_consumer_writes_events_and_rollbacks_over_the_limit(
    make_service: Callable[..., Service],
) -> None:
    orders = make_service("orders")
    stock = make_service("stock", backlog_limit=1)
    orders.app.declare("orders.placed")
    stock.app.declare("stock.reserved")

    @stock.app.consumer("stock").handles("orders.placed")
    def reserve(session, event) -> None:
        if event.payload == 2:
            raise Refused("out of stock")
        stock.app.outbox.add(session, Event(type="stock.reserved", payload=event.payload))

    make_topics(orders, stock)
    with orders.transaction() as session:
        orders.app.outbox.add_all(
            session, [Event(type="orders.placed", payload=n) for n in range(4)]
        )
    consumer = stock.app.build_consumer("stock")
    drain(orders.relay(), consumer)
    consumer.close()
    rows = stock.rows("SELECT topic, tx_kind, count(*) FROM shield_outbox GROUP BY 1, 2 ORDER BY 1")
    assert rows == [("orders.placed", "ROLLBACK", 1), ("stock.reserved", "COMMIT", 3)]
    found = stock.app.stores.limits().topics({"orders.placed": 1, "stock.reserved": 1})
    assert [(at.topic, at.limit) for at in found] == [("stock.reserved", 1)]
    with stock.transaction() as session, pytest.raises(BacklogExceeded):
        stock.app.outbox.add(session, Event(type="stock.reserved"))
