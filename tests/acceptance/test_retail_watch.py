"""The demo ends a suspended relay's connections: none of its statements is executed later."""

from __future__ import annotations

import threading

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from examples.retail.progress import watching
from tests.conftest import Eventually

RELAY = "orders relay 1"
WAITING = text("""
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'orders relay 1' AND wait_event_type = 'Lock'
""")


def test_statement_in_progress_changes_nothing_later(
    migrated_url: str, eventually: Eventually
) -> None:
    relay = create_engine(
        migrated_url,
        isolation_level="AUTOCOMMIT",
        connect_args={"application_name": RELAY},
    )
    operator = create_engine(migrated_url)
    failures: list[str] = []

    def mark() -> None:
        try:
            with relay.connect() as connection:
                connection.execute(text("UPDATE shield_shard SET owner = 'marked'"))
        except OperationalError as failed:
            failures.append(str(failed))

    with watching(migrated_url, migrated_url) as watch, operator.connect() as locking:
        locking.execute(text("SELECT 1 FROM shield_shard FOR UPDATE"))
        marking = threading.Thread(target=mark)
        marking.start()
        eventually(lambda: watch.orders.scalar(WAITING) == 1, "the relay's statement waits")

        watch.disconnect(RELAY)
        locking.rollback()
        marking.join()

        assert "terminating connection" in failures[0]
        assert watch.shards() == {}
    relay.dispose()
    operator.dispose()


def test_other_connections_are_left_alone(migrated_url: str) -> None:
    other = create_engine(migrated_url, connect_args={"application_name": "orders relay 2"})
    with watching(migrated_url, migrated_url) as watch, other.connect() as connection:
        watch.disconnect(RELAY)

        assert connection.scalar(text("SELECT 1")) == 1
    other.dispose()
