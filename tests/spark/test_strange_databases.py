"""Tests with unusual databases: their encoding, settings, times and transactions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from itertools import product

import pytest
from sqlalchemy import create_engine, insert, text

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.schema import Schema
from tests.conftest import wait
from tests.spark.planting import TOPIC, Service, inbox_row

RESERVE = ExpectedGroup(name="reserve", topics=(TOPIC,))
TEXTS = ("M\u00fcller", "S\u00f8ren", "plain", "back\\\\slash", "50 %", "{x}")


@pytest.fixture
def latin(postgres: EmbeddedPostgres) -> Iterator[Service]:
    """Return a service whose database is not in UTF-8."""
    yield from _made(postgres, "stock", "ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")


def _made(server: EmbeddedPostgres, name: str, how: str) -> Iterator[Service]:
    database = f"strange_{uuid.uuid4().hex}"
    admin = create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {database} {how}")
    service = Service(name=name, url=server.url(database), schema=None)
    Schema(service.engine).upgrade()
    yield service
    service.close()
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {database} WITH (FORCE)")
    admin.dispose()


@pytest.mark.parametrize("push_down", [True, False])
def test_equal_texts_match_in_any_encoding_of_the_databases(nights, orders, latin, push_down):
    for number, who in enumerate(TEXTS):
        said = {"payload": f'{{"who": "{who}"}}', "key": who, "biz_key": f"{who}{number}"}
        event_id = orders.write(**said)
        latin.receive(event_id, group="reserve", source="orders", **said)
    other = orders.write(payload='{"who": "M\u00fcller"}')
    latin.receive(other, group="reserve", source="orders", payload='{"who": "M\u00f8ller"}')

    found = nights.run(orders.database(), latin.database(), push_down=push_down)

    assert found.totals == {Verdict.MATCHED: len(TEXTS), Verdict.PAYLOAD_DIFFERS: 1}


@pytest.mark.parametrize("setting", ["on", "off"])
def test_event_type_with_a_backslash_is_read_with_any_setting(nights, orders, stock, setting):
    with orders.engine.begin() as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(
            text(f"ALTER DATABASE {name} SET standard_conforming_strings = {setting}")
        )
    orders.engine.dispose()
    for type_ in ("odd\\", "odd\\'quote", "plain"):
        event_id = orders.write(event_type=type_)
        stock.receive(event_id, group="reserve", source="orders", event_type=type_)
        orders.write(event_type=type_)

    found = nights.run(orders.database(), stock.database())

    assert found.totals == {Verdict.MATCHED: 3, Verdict.MISSING_DOWNSTREAM: 3}


COLUMNS = ("created_at", "settled_at", "event_time", "received_at")


TIMES = ("infinity", "-infinity", "294276-12-31", "4000-01-01 BC")


@pytest.mark.parametrize("push_down", [True, False])
def test_times_outside_the_calendar_do_not_end_a_run(nights, orders, stock, push_down):
    for column, time in product(COLUMNS, TIMES):
        sent = orders.write()
        received = stock.receive(sent, group="reserve", source="orders")
        set_time(orders, "shield_outbox", column, time, sent)
        set_time(stock, "shield_inbox", column, time, received)
        # The page shows the times of these.
        parked = orders.write(OutboxStatus.FAILED, last_error="refused")
        set_time(orders, "shield_outbox", column, time, parked)

    found = nights.run(orders.database(), stock.database(groups=(RESERVE,)), push_down=push_down)

    assert found.totals == {Verdict.MATCHED: 16, Verdict.PARKED: 16}


def set_time(service: Service, table: str, column: str, time: str, event_id: uuid.UUID) -> None:
    """Set a time with SQL, where the table has the column."""
    if column not in service.tables.metadata.tables[_named(service, table)].c:
        return
    with service.engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE {_named(service, table)} SET {column} = CAST(:time AS timestamptz) "
                "WHERE event_id = :event"
            ),
            {"time": time, "event": event_id},
        )


def _named(service: Service, table: str) -> str:
    return f"{service.schema}.{table}" if service.schema else table


def test_what_waits_in_a_prepared_transaction_is_in_flight(nights, orders, stock):
    margin = timedelta(seconds=1)
    sent = orders.write(age=0)
    row = inbox_row("orders", sent, InboxStatus.PROCESSED, group="reserve", now=stock.now(), age=0)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    with stock.engine.connect() as consumer:
        transaction = consumer.begin_twophase()
        consumer.execute(insert(stock.tables.inbox), [row])
        transaction.prepare()
        prepared = orders.now()
        wait(lambda: orders.now() > prepared + margin, "the event is older than the margin")

        held = nights.run(*services, margin=margin)
        transaction.commit()

    assert held.totals == {Verdict.IN_FLIGHT: 1}
    assert nights.run(*services, margin=margin).totals == {Verdict.MATCHED: 1}
