"""Tests of the queries that run on real databases before Spark starts."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from shieldtx.reconcile.request import ReconcileRequest, Selection
from spark.prefetch import prefetching
from spark.sources.server_checks import Servers
from tests.conftest import wait

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock' AND state = 'active'"
)


def request_of(*services, **changes):
    databases = tuple(service.database() for service in services)
    return ReconcileRequest(services=databases, folder=Path("unused"), **changes)


def waiting(service):
    with service.engine.connect() as connection:
        return connection.scalar(text(WAITING))


def test_no_digest_is_asked_for_before_the_clocks_have_answered(orders, stock, monkeypatch):
    answered = threading.Event()
    clocks_of = Servers.clocks

    def clocks(servers):
        assert answered.wait(60)
        return clocks_of(servers)

    monkeypatch.setattr(Servers, "clocks", clocks)
    orders.write()
    with prefetching(request_of(orders, stock)) as prefetch:
        assert not prefetch.digests.running()
        answered.set()
        assert prefetch.digests.result().groups
        assert prefetch.clocks.done()
    assert prefetch.clocks.result().keys() == {"orders", "stock"}


@pytest.mark.parametrize(
    "changes",
    [{"push_down": False}, {"selection": Selection(moved_since={"orders": LONG_AGO})}],
)
def test_only_a_run_that_compares_digests_asks_for_them(orders, stock, changes):
    with prefetching(request_of(orders, stock, **changes)) as prefetch:
        assert prefetch.digests is None
        prefetch.clocks.result()


def test_database_error_is_raised_where_its_answer_is_awaited(orders, stock):
    with orders.engine.begin() as connection:
        connection.execute(text("ALTER TABLE shield_outbox DROP COLUMN payload"))
    with prefetching(request_of(orders, stock)) as prefetch:
        assert prefetch.clocks.result()
        with pytest.raises(Exception, match="payload") as raised:
            prefetch.digests.result()
    assert raised.value.__notes__ == ["in the database of service orders"]


def test_unanswered_queries_are_cancelled_at_the_end(orders, stock):
    request = request_of(orders, stock, statement_timeout=timedelta(hours=1))
    with orders.engine.begin() as other:
        other.execute(text("LOCK TABLE shield_outbox"))
        with prefetching(request) as prefetch:
            wait(lambda: waiting(orders) > 0, "the digests wait for the lock")
        assert prefetch.digests.exception() is not None
        assert waiting(orders) == 0
