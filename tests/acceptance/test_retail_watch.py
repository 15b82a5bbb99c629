"""The demo keeps a killed relay from marking the events that it has sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.exc import DBAPIError

from examples.retail import progress
from examples.retail.progress import watching
from shieldtx.domain.states import OutboxStatus
from shieldtx.store.tables import tables
from tests.conftest import Eventually
from tests.support.rows_in_any_state import outbox_row

RELAY = "orders relay 1"
PID = 4711

LOCK_ALL = text("SELECT biz_key FROM shield_outbox ORDER BY biz_key FOR UPDATE SKIP LOCKED")
MARK_ALL = text("UPDATE shield_outbox SET settled_at = now() WHERE status = 'PROCESSING'")
UNSETTLED = text("SELECT count(*) FROM shield_outbox WHERE settled_at IS NULL")
WAITING = text(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def orders(migrated_url: str) -> Iterator[Engine]:
    """The database of the orders: the relay of a process id has claimed basket 0, others more."""
    engine = create_engine(migrated_url)
    with engine.begin() as connection:
        for shard, owner in enumerate([f"relay-host-{PID}-1", "relay-host-1-1"]):
            connection.execute(
                text("UPDATE shield_shard SET owner = :owner WHERE shard = :shard"),
                {"owner": owner, "shard": shard},
            )
        for basket, (status, shard) in enumerate(
            [
                (OutboxStatus.PROCESSING, 0),
                (OutboxStatus.PROCESSED, 0),
                (OutboxStatus.INIT, 0),
                (OutboxStatus.PROCESSING, 1),
            ]
        ):
            row = outbox_row(status, biz_key=str(basket), shard=shard)
            connection.execute(insert(tables().outbox).values(row))
    yield engine
    engine.dispose()


def test_claims_of_one_relay_are_locked_within_the_block(orders: Engine, migrated_url: str) -> None:
    with watching(migrated_url, migrated_url) as watch:
        with watch.claims_held(PID) as claimed, orders.connect() as others:
            assert claimed == {0}
            assert others.scalars(LOCK_ALL).all() == ["1", "2", "3"]
        with orders.connect() as others:
            assert others.scalars(LOCK_ALL).all() == ["0", "1", "2", "3"]


def test_waiting_statement_of_a_killed_relay_is_not_executed(
    orders: Engine, migrated_url: str, eventually: Eventually
) -> None:
    relay = create_engine(migrated_url, connect_args={"application_name": RELAY})
    errors: list[str] = []

    def mark() -> None:
        with pytest.raises(DBAPIError) as ended, relay.begin() as connection:
            connection.execute(MARK_ALL)
        errors.append(str(ended.value))

    marking = threading.Thread(target=mark)
    with watching(migrated_url, migrated_url) as watch:
        before = watch.orders.scalars(UNSETTLED).one()
        with watch.claims_held(PID):
            marking.start()
            eventually(lambda: watch.orders.scalars(WAITING).one() == 1, "the relay waits")
            watch.disconnect(RELAY)
        marking.join()
        assert "terminating connection" in errors[0]
        assert watch.orders.scalars(UNSETTLED).one() == before
    relay.dispose()


def test_only_the_named_process_loses_its_connections(migrated_url: str) -> None:
    other = create_engine(migrated_url, connect_args={"application_name": "orders relay 2"})
    with watching(migrated_url, migrated_url) as watch, other.connect() as connection:
        assert connection.scalars(text("SELECT 1")).one() == 1
        watch.disconnect(RELAY)
        assert connection.scalars(text("SELECT 1")).one() == 1
    other.dispose()


def test_connections_that_do_not_end_are_an_error(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DISCONNECTED_S", -1.0)
    relay = create_engine(migrated_url, connect_args={"application_name": RELAY})
    with (
        watching(migrated_url, migrated_url) as watch,
        relay.connect(),
        pytest.raises(TimeoutError, match=f"connections of {RELAY}"),
    ):
        watch.disconnect(RELAY)
    relay.dispose()
