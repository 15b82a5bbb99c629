"""The demo sees what PostgreSQL still executes for a process, and what that has settled."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine, insert, text

from examples.retail import progress
from examples.retail.progress import watching
from shieldtx.domain.states import OutboxStatus
from shieldtx.store.tables import tables
from tests.conftest import Eventually
from tests.support.rows_in_any_state import outbox_row

RELAY = "orders relay 1"


def test_statement_that_waits_for_a_lock_is_seen(migrated_url: str, eventually: Eventually) -> None:
    relay = create_engine(migrated_url, connect_args={"application_name": RELAY})
    operator = create_engine(migrated_url)

    def mark() -> None:
        with relay.begin() as connection:
            connection.execute(text("UPDATE shield_shard SET owner = 'marked'"))

    marking = threading.Thread(target=mark)
    with watching(migrated_url, migrated_url) as watch, operator.connect() as locking:
        locking.execute(text("SELECT 1 FROM shield_shard FOR UPDATE"))
        assert not watch.executes(RELAY)
        marking.start()
        eventually(lambda: watch.executes(RELAY), "the relay's statement waits")
        assert not watch.executes("orders relay 2")

        locking.rollback()
        marking.join()
        assert not watch.executes(RELAY)
    relay.dispose()
    operator.dispose()


def test_connection_that_does_not_end_is_an_error(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DISCONNECTED_S", 0.1)
    relay = create_engine(migrated_url, connect_args={"application_name": RELAY})
    with watching(migrated_url, migrated_url) as watch:
        with relay.connect(), pytest.raises(TimeoutError, match=f"connections of {RELAY}"):
            watch.await_disconnected(RELAY)
        relay.dispose()
        monkeypatch.undo()

        watch.await_disconnected(RELAY)


def test_settled_baskets_are_not_counted(migrated_url: str) -> None:
    statuses = (OutboxStatus.PROCESSING, OutboxStatus.PROCESSED, OutboxStatus.INIT)
    engine = create_engine(migrated_url)
    with engine.begin() as connection:
        for basket, status in enumerate(statuses):
            row = outbox_row(status, biz_key=str(basket))
            connection.execute(insert(tables().outbox).values(row))
    with watching(migrated_url, migrated_url) as watch:
        assert watch.unsettled(frozenset({0, 1})) == 1
    engine.dispose()
