"""Tests of the digests of real outboxes and inboxes: made in their databases, compared in Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.digest_buckets import Buckets
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.window import memories_of
from spark.compare import digests, read_plan
from spark.sources.jdbc import Databases
from spark.sources.row_filters import NOTHING
from spark.sources.server_checks import Servers

EVENTS = range(1, 41)
"""Numbers of events; the event `number` is the only one in the bucket of this number."""


def id_of(number):
    return UUID(int=number << 120)


@pytest.fixture
def compared(monkeypatch, spark, orders, stock):
    """Compare the digests of the two services, one event in a bucket."""
    buckets = Buckets(bounds=tuple(number << 52 for number in EVENTS), steps=1)
    monkeypatch.setattr(digests, "buckets_for", lambda rows, samples: buckets)

    def compare(**changes):
        services = (orders.database(), stock.database(**changes))
        request = ReconcileRequest(services=services, folder=Path("unused"))
        servers = Servers(request=request)
        memories = memories_of(servers.clocks(), margin=request.margin)
        found = digests.digests_of(servers, memories)
        databases = Databases(spark=spark, request=request, lately=orders.now(), memories=memories)
        return read_plan.plan_of(databases, found)

    return compare


@pytest.fixture
def in_order(orders, stock):
    """Write forty events that were published and processed."""
    for number in EVENTS:
        orders.write(event_id=id_of(number))
        stock.receive(id_of(number), group="reserve", source="orders")


def test_what_is_in_order_is_counted_and_not_read(in_order, compared):
    plan = compared()
    (found,) = plan.compared
    assert (found.clean, found.differing) == (len(EVENTS), [])
    assert all(one is NOTHING for one in (*plan.outboxes.values(), *plan.inboxes.values()))


@pytest.mark.parametrize("number", [EVENTS[0], 15, 16, 17, EVENTS[-1]])
def test_only_changed_buckets_of_a_group_differ(in_order, compared, orders, stock, number):
    with stock.engine.begin() as connection:
        inbox = stock.tables.inbox
        connection.execute(
            inbox.update().where(inbox.c.event_id == id_of(number)).values(payload="changed")
        )
    (found,) = compared().compared
    assert (found.clean, found.differing) == (len(EVENTS) - 1, [number])


def test_buckets_on_one_side_alone_differ(in_order, compared, orders, stock):
    orders.write(event_id=UUID(int=(20 << 120) + 1))
    stock.receive(UUID(int=(33 << 120) + 1), group="reserve", source="orders")
    with stock.engine.begin() as connection:
        inbox = stock.tables.inbox
        connection.execute(inbox.delete().where(inbox.c.event_id == id_of(3)))
    (found,) = compared().compared
    assert (found.clean, found.differing) == (len(EVENTS) - 3, [3, 20, 33])


def test_odd_rows_are_listed_by_id_and_in_no_digest(in_order, compared, orders, stock):
    parked = orders.write(OutboxStatus.FAILED, event_id=UUID(int=(20 << 120) + 1))
    dead = [
        stock.receive(UUID(int=(22 << 120) + n), InboxStatus.DEAD, group="reserve", source="orders")
        for n in (1, 2)
    ]
    plan = compared()
    (found,) = plan.compared
    assert (found.clean, found.differing) == (len(EVENTS), [])
    (read,) = plan.outboxes["orders"].parts
    assert f"AND event_id IN ('{parked}')" in read
    (read,) = plan.inboxes["stock"].parts
    assert all(f"'{one}'" in read for one in dead)


def test_event_that_its_group_may_have_purged_is_in_no_digest(in_order, compared, orders, stock):
    """The event is two days old, so a group with a retention of one day may have purged it."""
    event = orders.write(event_id=UUID(int=(20 << 120) + 1), age=2 * 24 * 60)
    written_at = orders.now() - timedelta(days=2)
    stock.receive(event, group="reserve", source="orders", event_time=written_at)
    assert compared().compared[0].differing == []
    assert compared(retention=timedelta(days=3)).compared[0].differing == []
    plan = compared(retention=timedelta(days=1))
    (found,) = plan.compared
    assert (found.clean, found.differing) == (len(EVENTS) - 1, [20])


def test_a_type_without_a_route_has_nothing_that_differs(in_order, compared, orders):
    orders.write(event_id=UUID(int=(5 << 120) + 1), event_type="orders.noted", topic="notes")
    (found,) = compared().compared
    assert (found.clean, found.differing) == (len(EVENTS), [])


@pytest.mark.parametrize("status", [InboxStatus.PROCESSED, InboxStatus.DEAD])
def test_events_of_other_sources_are_reported_and_not_compared(
    in_order, compared, orders, stock, status
):
    stock.receive(UUID(int=(5 << 120) + 1), status, group="reserve", source="legacy")
    plan = compared()
    (found,) = plan.compared
    assert (found.clean, found.differing) == (len(EVENTS), [])
    assert all(one is NOTHING for one in (*plan.outboxes.values(), *plan.inboxes.values()))
    assert any("legacy" in sentence for sentence in plan.expectation.left_out)
