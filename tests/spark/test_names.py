"""Tests that names that match no event, and events that match no name, prevent a clean run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, update

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes, mode
from tests.spark.planting import TOPIC

pytestmark = pytest.mark.thorough

DAY = 24 * 60
CLEAN, NOT_JUDGED = RunOutcome.CLEAN, RunOutcome.NOT_JUDGED
RESERVE = ExpectedGroup(name="reserve", topics=(TOPIC,))
AUDITED = {"topic": "orders.audited", "event_type": "orders.audited"}
AUDIT = ExpectedGroup(name="audit", topics=(TOPIC,))
# Two types of one topic.
PLACED = {"topic": "orders", "event_type": "placed"}
REFUNDED = {"topic": "orders", "event_type": "refunded"}
PLACED_ALONE = ExpectedGroup(name="reserve", topics=("orders",), event_types=("placed",))
UNRECEIVED = (
    "no group is expected to receive refunded (orders) of orders: name the groups that should, or "
    "list the types in `for_others`"
)


@pytest.fixture
def lost(orders, stock):
    """Write ten events of orders, of which stock lacks three."""
    for number in range(10):
        event_id = orders.write(age=DAY)
        if number >= 3:
            stock.receive(event_id, group="reserve", source="orders", age=DAY)


@pytest.mark.usefixtures("lost")
@pytest.mark.parametrize("push_down", [True, False])
def test_service_name_without_events_prevents_a_clean_run(nights, orders, stock, push_down):
    misnamed = replace(orders.database(), name="order")

    found = nights.run(misnamed, stock.database(), push_down=push_down)

    assert found.outcome is NOT_JUDGED
    told, nothing = found.problems
    assert told.startswith("the outbox of order holds events of 'orders' (10 PROCESSED), which is")
    assert nothing.startswith("no event of these services was there to compare")


@pytest.mark.parametrize("status", [OutboxStatus.PROCESSED, OutboxStatus.FAILED, OutboxStatus.INIT])
def test_events_under_a_former_name_are_reported_every_night(nights, orders, stock, status):
    for _ in range(3):
        event_id = orders.write(age=3 * DAY)
        stock.receive(event_id, group="reserve", source="orders", age=3 * DAY)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    orders.write(status, source="shop", age=60, last_error="x" if status == "FAILED" else None)

    night = nights.run(*services)

    assert (mode(night), night.outcome) == (Mode.INCREMENTAL, NOT_JUDGED)
    (told,) = night.problems
    assert f"holds events of 'shop' (1 {status})" in told


def test_sources_that_take_no_part_are_left_out(nights, orders, stock):
    event_id = orders.write(age=DAY)
    stock.receive(event_id, group="reserve", source="orders", age=DAY)
    orders.write(age=DAY, source="billing")

    found = nights.run(orders.database(other_sources=("billing",)), stock.database())

    assert found.outcome is CLEAN
    assert found.left_out == (
        "the outbox of orders holds events of 'billing' (1 PROCESSED), which takes no part in this",
    )


@pytest.mark.parametrize("push_down", [True, False])
def test_failed_events_for_others_are_reported_every_night(nights, orders, stock, push_down):
    event_id = orders.write(age=3 * DAY)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY)
    orders.write(age=3 * DAY, **AUDITED)
    services = _with_an_audit(orders, stock)
    assert nights.run(*services, push_down=push_down).outcome is CLEAN
    orders.write(OutboxStatus.FAILED, age=2 * DAY, last_error="no such topic", **AUDITED)
    a_day_passes(orders)

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert night.outcome is NOT_JUDGED
        (told,) = night.problems
        assert told.startswith(
            "1 events of orders on orders.audited, a topic for others, are FAILED"
        )


@pytest.mark.parametrize("status", [OutboxStatus.FAILED, OutboxStatus.UNRESOLVED])
def test_failed_events_for_others_without_error_are_reported(nights, orders, stock, status):
    event_id = orders.write(age=DAY)
    stock.receive(event_id, group="reserve", source="orders", age=DAY)
    for error in (None, None, "no such topic"):
        orders.write(status, age=DAY, last_error=error, **AUDITED)

    found = nights.run(*_with_an_audit(orders, stock))

    assert found.outcome is NOT_JUDGED
    unlisted, listed = found.problems
    on_topic = "events of orders on orders.audited, a topic for others, are"
    assert unlisted.startswith(
        f"2 {on_topic} {status} and wait for an operator: they have no last_er"
    )
    assert listed.startswith(f"1 {on_topic} {status} and wait for an operator: see `shieldtx dead")


@pytest.mark.parametrize("push_down", [True, False])
def test_unclaimed_events_for_others_are_reported_every_night(nights, orders, stock, push_down):
    event_id = orders.write(age=3 * DAY)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY)
    orders.write(age=3 * DAY, **AUDITED)
    services = _with_an_audit(orders, stock)
    assert nights.run(*services, push_down=push_down).outcome is CLEAN
    a_day_passes(orders)
    init, processing = OutboxStatus.INIT, OutboxStatus.PROCESSING
    for _ in range(2):
        orders.write(init, age=DAY // 2, **AUDITED)
    orders.write(processing, age=DAY // 2, **AUDITED)
    now = orders.now()
    # Just written, due later, claimed, and queued after an event that is due later.
    waits = {"waiting": True, "holds_key": True}
    orders.write(init, age=1, **AUDITED)
    orders.write(init, age=DAY // 2, due_age=-60, waiting=True, **AUDITED)
    orders.write(processing, age=DAY // 2, lease_until=now + timedelta(hours=1), **AUDITED)
    orders.write(init, age=DAY // 2, due_age=-60, key="k", **waits, **AUDITED)
    orders.write(init, age=DAY // 2, key="k", **AUDITED)

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, NOT_JUDGED)
        told = [problem.partition(",")[0::2] for problem in night.problems]
        assert [begin for begin, _ in told] == [
            "2 events of orders on orders.audited",
            "1 events of orders on orders.audited",
        ]
        assert [rest.split(",")[1].split()[-1] for _, rest in told] == ["INIT", "PROCESSING"]


@pytest.mark.parametrize("push_down", [True, False])
def test_unsent_rollbacks_for_others_are_reported_every_night(nights, orders, stock, push_down):
    event_id = orders.write(age=3 * DAY)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY)
    of_crm = {"kind": TxKind.ROLLBACK, "causation_id": event_id, "causation_source": "crm"}
    stock.write(age=3 * DAY, **of_crm)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    assert nights.run(*services, push_down=push_down).outcome is CLEAN
    a_day_passes(orders)
    a_day_passes(stock)
    failed = OutboxStatus.FAILED
    for _ in range(2):
        stock.write(failed, age=2 * DAY, last_error="no such topic", **of_crm)
    stock.write(OutboxStatus.INIT, age=DAY // 2, **of_crm)
    stock.write(OutboxStatus.INIT, age=1, **of_crm)

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, NOT_JUDGED)
        waiting, stuck = night.problems
        named = "rollbacks by stock of events of crm, which is none of these services, are"
        assert waiting.startswith(f"2 {named} FAILED and wait for an operator")
        assert stuck.startswith(f"1 {named} INIT, and nothing has moved them since before")


def test_failed_rollbacks_without_writer_or_error_are_reported(nights, orders, stock):
    event_id = orders.write(age=DAY)
    stock.receive(event_id, group="reserve", source="orders", age=DAY)
    rollback = {"kind": TxKind.ROLLBACK, "causation_id": event_id}
    stock.write(OutboxStatus.FAILED, age=DAY, last_error=None, **rollback)

    found = nights.run(orders.database(), stock.database(groups=(RESERVE,)))

    assert found.outcome is NOT_JUDGED
    (told,) = found.problems
    named = "1 rollbacks by stock of events of a service that they do not name are FAILED"
    assert told.startswith(f"{named} and wait for an operator")
    assert "they have no last_error" in told


OF_SHOP = {"kind": TxKind.ROLLBACK, "causation_source": "shop"}
NONE_OF_THESE = "which is none of these services,"


@pytest.mark.parametrize("push_down", [True, False])
def test_unhandled_rollbacks_of_others_are_reported_every_night(nights, orders, stock, push_down):
    """For example of events that orders wrote under a former name, which take no part any more."""
    event_id = orders.write(age=3 * DAY)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY)
    of_shop = {**OF_SHOP, "causation_id": event_id}
    _taken_back(orders, stock, InboxStatus.PROCESSED, age=3 * DAY, **of_shop)
    services = (
        orders.database(other_sources=("shop",)),
        stock.database(groups=(RESERVE,)),
    )
    assert nights.run(*services, push_down=push_down).outcome is CLEAN
    a_day_passes(orders)
    a_day_passes(stock)
    for _ in range(2):
        _taken_back(
            orders, stock, InboxStatus.DEAD, age=2 * DAY, last_error="not in the outbox", **of_shop
        )
    _taken_back(orders, stock, InboxStatus.INIT, age=DAY // 2, **of_shop)
    # Just received, waiting for a retry, and being processed.
    _taken_back(orders, stock, InboxStatus.INIT, age=1, **of_shop)
    _taken_back(orders, stock, InboxStatus.PROCESSING, age=DAY // 2, due_age=-60, **of_shop)
    now = orders.now()
    lease = {"lease_until": now + timedelta(hours=1)}
    _taken_back(orders, stock, InboxStatus.PROCESSING, age=DAY // 2, **lease, **of_shop)

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, NOT_JUDGED)
        dead, stuck = night.problems
        named = f"rollbacks by stock of events of shop, {NONE_OF_THESE} in group undo of orders are"
        assert dead == (
            f"2 {named} DEAD and wait for an operator, so that their events are not compensated: "
            "see `shieldtx dead list` of orders"
        )
        assert stuck.startswith(f"1 {named} INIT, and nothing has moved them since before")
        assert stuck.endswith("see whether the consumers of orders run and keep up")


def _taken_back(orders, stock, status, *, age, **columns):
    """Let stock send a rollback, and a group of orders receive it with a status."""
    of_event = {name: columns[name] for name in ("kind", "causation_source", "causation_id")}
    rollback = stock.write(age=age, **of_event)
    orders.receive(rollback, status, group="undo", source="stock", age=age, **columns)


def test_dead_rollbacks_without_writer_or_error_are_reported(nights, orders, stock):
    event_id = orders.write(age=DAY)
    stock.receive(event_id, group="reserve", source="orders", age=DAY)
    rollback = {"kind": TxKind.ROLLBACK, "causation_id": event_id}
    for source, error, writer in (("crm", None, "orders"), ("stock", "x", None)):
        named = {"last_error": error, "causation_source": writer}
        more = {**rollback, **named, "source": source, "age": DAY}
        orders.receive(new_event_id(), InboxStatus.DEAD, group="undo", **more)

    found = nights.run(orders.database(), stock.database(groups=(RESERVE,)))

    assert found.outcome is NOT_JUDGED
    unlisted, unnamed = found.problems
    by_crm = f"1 rollbacks by crm, {NONE_OF_THESE} of events of orders in group undo of orders"
    assert unlisted.startswith(f"{by_crm} are DEAD and wait for an operator")
    assert "they have no last_error" in unlisted
    of_nobody = "1 rollbacks by stock of events of a service that they do not name in group undo"
    assert unnamed.startswith(of_nobody)


def test_waiting_events_of_others_are_reported_unless_left_out(nights, orders, stock):
    event_id = orders.write(age=DAY)
    stock.receive(event_id, group="reserve", source="orders", age=DAY)
    for status in (InboxStatus.INIT, InboxStatus.PROCESSED, InboxStatus.MAX_RECONSUMED):
        stock.receive(new_event_id(), status, group="audit", source="crm", age=DAY)
    dead = {"source": "crm", "age": DAY, "last_error": "x", "kind": TxKind.ROLLBACK}
    for writer in ("shop", "stock"):
        more = {**dead, "causation_source": writer}
        stock.receive(new_event_id(), InboxStatus.DEAD, group="audit", **more)

    told, left_out = (
        nights.run(
            orders.database(), stock.database(groups=(RESERVE,), other_sources=others), scope=scope
        )
        for scope, others in (("told", ()), ("left out", ("crm",)))
    )

    assert (told.outcome, left_out.outcome) == (NOT_JUDGED, NOT_JUDGED)
    of_shop, of_stock, stuck = told.problems
    by_crm, in_audit = (
        f"1 rollbacks by crm, {NONE_OF_THESE} of events of",
        "in group audit of stock",
    )
    assert of_shop.startswith(f"{by_crm} shop, {NONE_OF_THESE} {in_audit} are DEAD")
    assert of_stock.startswith(f"{by_crm} stock {in_audit} are DEAD")
    assert stuck.startswith(f"1 events of crm, {NONE_OF_THESE} {in_audit} are INIT")
    # If crm takes events of these services back, they have to compensate.
    assert left_out.problems == (of_stock,)
    foreign = "stock has received events of crm, which is none of these services"
    assert told.left_out == left_out.left_out == (foreign,)


def _with_an_audit(orders, stock):
    """Return the services; one of them writes to a topic that no other service reads."""
    return orders.database(others=("orders.audited",)), stock.database(groups=(RESERVE,))


@pytest.mark.parametrize("push_down", [True, False])
@pytest.mark.parametrize("names", ["named", "unnamed"])
@pytest.mark.parametrize("status", [OutboxStatus.PROCESSED, OutboxStatus.FAILED, OutboxStatus.INIT])
def test_type_without_an_expected_group_prevents_a_clean_run(
    nights, orders, stock, push_down, names, status
):
    """Holds with named groups and with inferred ones, and although the topic has another type."""
    event_id = orders.write(age=DAY, **PLACED)
    stock.receive(event_id, group="reserve", source="orders", age=DAY, **PLACED)
    groups = (PLACED_ALONE,) if names == "named" else None
    services = (orders.database(), stock.database(groups=groups))
    orders.write(status, age=DAY, last_error="x" if status == "FAILED" else None, **REFUNDED)

    found = nights.run(*services, push_down=push_down)

    assert (mode(found), found.outcome) == (Mode.FULL, NOT_JUDGED)
    assert found.problems == (UNRECEIVED,)


@pytest.mark.parametrize("status", [OutboxStatus.PROCESSED, OutboxStatus.FAILED, OutboxStatus.INIT])
def test_new_type_without_expected_group_is_reported_every_night(nights, orders, stock, status):
    event_id = orders.write(age=3 * DAY, **PLACED)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY, **PLACED)
    services = (orders.database(), stock.database(groups=(PLACED_ALONE,)))
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    orders.write(status, age=60, last_error="x" if status == "FAILED" else None, **REFUNDED)

    for _ in range(2):
        night = nights.run(*services)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, NOT_JUDGED)
        assert night.problems == (UNRECEIVED,)
        a_day_passes(orders)


@pytest.mark.parametrize("push_down", [True, False])
@pytest.mark.parametrize("names", ["named", "unnamed"])
def test_a_type_of_which_no_event_was_sent_needs_no_group(nights, orders, stock, push_down, names):
    """The first event is due in a month, was cancelled, or is an open half message."""
    event_id = orders.write(age=3 * DAY, **PLACED)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY, **PLACED)
    groups = (PLACED_ALONE,) if names == "named" else None
    services = (orders.database(), stock.database(groups=groups))
    later = {"age": 2 * DAY, "due_age": -30 * DAY, "waiting": True}
    due = orders.write(OutboxStatus.INIT, **later, **REFUNDED)
    orders.write(OutboxStatus.HALF, **later, topic="orders", event_type="credited")
    orders.write(OutboxStatus.DISCARDED, age=2 * DAY, topic="orders", event_type="recalled")
    orders.write(OutboxStatus.INIT, age=1, topic="orders", event_type="noted")

    for expected in (Mode.FULL, Mode.INCREMENTAL):
        night = nights.run(*services, push_down=push_down)

        assert (mode(night), night.outcome, night.problems) == (expected, CLEAN, ())
        a_day_passes(orders)

    sent_at = orders.now() - timedelta(minutes=20)
    with orders.engine.begin() as connection:
        outbox = orders.tables.outbox
        sent = update(outbox).where(outbox.c.event_id == due)
        connection.execute(sent.values(status="PROCESSED", settled_at=sent_at, waiting=False))
        connection.execute(delete(outbox).where(outbox.c.event_type == "noted"))

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert (night.outcome, night.problems) == (NOT_JUDGED, (UNRECEIVED,))


@pytest.mark.parametrize("push_down", [True, False])
def test_waiting_events_for_others_are_reported_every_night(nights, orders, stock, push_down):
    event_id = orders.write(age=3 * DAY, **PLACED)
    stock.receive(event_id, group="reserve", source="orders", age=3 * DAY, **PLACED)
    orders.write(age=3 * DAY, **REFUNDED)
    services = (orders.database(others=("refunded",)), stock.database(groups=(PLACED_ALONE,)))
    assert nights.run(*services, push_down=push_down).outcome is CLEAN
    a_day_passes(orders)
    orders.write(OutboxStatus.FAILED, age=DAY // 2, last_error="no such topic", **REFUNDED)
    orders.write(age=DAY // 2, **REFUNDED)
    orders.write(OutboxStatus.INIT, age=DAY // 2, **REFUNDED)

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, NOT_JUDGED)
        failed, stuck = night.problems
        of_type = "1 events of orders on orders with the type refunded, a type for others, are"
        assert failed.startswith(f"{of_type} FAILED and wait for an operator: see `shieldtx dead")
        assert stuck.startswith(f"{of_type} INIT, and nothing has moved them since before")


def test_services_with_shared_tables_are_not_foreign_sources(nights, orders, stock):
    """Their sources distinguish them, however their URLs are written."""
    event_id = orders.write(age=DAY)
    orders.receive(event_id, group="notify", source="orders", age=DAY)
    orders.write(age=DAY, source="mail", topic="mail.sent", event_type="mail.sent")
    notify = ExpectedGroup(name="notify", topics=(TOPIC,))
    mail = replace(
        orders.database(groups=(notify,), others=("mail.sent",)),
        name="mail",
        url=f"{orders.url}?application_name=other",
    )

    found = nights.run(orders.database(), mail)

    assert (found.outcome, found.problems) == (CLEAN, ())


@pytest.mark.usefixtures("lost")
@pytest.mark.parametrize(
    ("audit", "told"),
    [
        (replace(AUDIT, topics=("order.placed",)), "receives order.placed"),
        (replace(AUDIT, event_types=("order.placed",)), "is to have the events order.placed"),
        (replace(AUDIT, upstreams=("order",)), "is to have events from order"),
        (
            replace(AUDIT, kind=TxKind.ROLLBACK, topics=("stock.reserved",)),
            "compensates stock.reserved",
        ),
    ],
)
def test_filter_that_matches_no_event_is_reported(nights, orders, stock, audit, told):
    services = (orders.database(), stock.database(groups=(RESERVE, audit)))

    found = nights.run(*services)

    (problem,) = found.problems
    assert problem.startswith(f"group audit of stock {told}, and no such event is kept, nor")
    assert found.totals[Verdict.MISSING_DOWNSTREAM] == 3


def test_group_for_future_events_can_be_declared(nights, orders, stock):
    event_id = orders.write(age=DAY)
    stock.receive(event_id, group="reserve", source="orders", age=DAY)
    early = ExpectedGroup(name="audit", topics=("recalled",), may_be_unused=("recalled",))

    found = nights.run(orders.database(), stock.database(groups=(RESERVE, early)))

    assert (found.outcome, found.problems) == (CLEAN, ())
