"""Tests of consecutive nights: where the next night may start, and what it must judge anyway."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.repair.listed_rows import listed_rows
from shieldtx.reconcile.request import EVERYTHING, BrokerAccess
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.schema import Schema
from tests.spark.nights import a_day_passes, mode
from tests.spark.planting import TOPIC, Service
from tests.spark.publishing import Topic

pytestmark = pytest.mark.thorough

DAY = 24 * 60
ROLLBACK = TxKind.ROLLBACK
CLEAN, MISMATCHES = RunOutcome.CLEAN, RunOutcome.MISMATCHES
RESERVE = ExpectedGroup(name="reserve", topics=(TOPIC,))
AUDIT = ExpectedGroup(name="audit", topics=(TOPIC,))
COMPENSATING = replace(RESERVE, kind=ROLLBACK, of_others=True, event_types=(TOPIC,))


def received_by(service: Service, *groups: str, number: int = 5, of: Service) -> list:
    """Plant events of three days ago that groups have received."""
    ids = [of.write(age=3 * DAY) for _ in range(number)]
    for group in groups:
        for event_id in ids:
            service.receive(event_id, group=group, source=of.name, age=3 * DAY)
    return ids


def execute(service: Service, statement: str, **values) -> None:
    with service.engine.begin() as connection:
        if service.schema:
            connection.execute(text(f"SET LOCAL search_path = {service.schema}"))
        connection.execute(text(statement), values)


def test_a_night_like_the_one_before_looks_at_what_has_moved(nights, orders, stock):
    received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE,)))

    first = nights.run(*services)
    a_day_passes(orders)
    second = nights.run(*services)

    assert (first.outcome, mode(first)) == (CLEAN, Mode.FULL)
    assert first.full_because == ("no earlier run was good",)
    assert (second.outcome, mode(second), second.full_because) == (CLEAN, Mode.INCREMENTAL, ())


CHANGES = {
    "a group was added": (
        {},
        {"groups": (RESERVE, AUDIT)},
        {},
        "the configuration of service stock has changed",
    ),
    "a filter was widened": (
        {
            "groups": (
                RESERVE,
                ExpectedGroup(
                    name="audit", topics=(TOPIC,), upstreams=("mail",), may_be_unused=("mail",)
                ),
            )
        },
        {"groups": (RESERVE, AUDIT)},
        {},
        "the configuration of service stock has changed",
    ),
    "the margin is shorter": (
        {},
        {},
        {"margin": timedelta(minutes=5)},
        "the margin was 0:15:00 and is 0:05:00",
    ),
    "rows are kept for longer": (
        {"retention": timedelta(days=2)},
        {"retention": timedelta(days=9)},
        {},
        "the configuration of service stock has changed",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_configuration_leads_to_a_full_run(change, nights, orders, stock):
    received_by(stock, "reserve", of=orders)
    before, after, of_all, why = CHANGES[change]
    stock_before = stock.database(**({"groups": (RESERVE,)} | before))
    stock_after = stock.database(**({"groups": (RESERVE,)} | after))
    nights.run(orders.database(), stock_before)
    a_day_passes(orders)

    night = nights.run(orders.database(), stock_after, **of_all)

    assert (mode(night), night.full_because) == (Mode.FULL, (why,))


def test_a_group_that_was_added_is_missed_in_the_first_night(nights, orders, stock):
    received_by(stock, "reserve", of=orders)
    nights.run(orders.database(), stock.database(groups=(RESERVE,)))
    a_day_passes(orders)

    night = nights.run(orders.database(), stock.database(groups=(RESERVE, AUDIT)))

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 5


def test_files_of_one_name_do_not_share_watermarks(nights, orders, stock, services):
    mail = services[-1]
    ids = received_by(stock, "reserve", number=20, of=orders)
    for event_id in ids[5:]:
        mail.receive(event_id, group="notify", source="orders", age=3 * DAY)
    to_stock = (orders.database(), stock.database(groups=(RESERVE,)))
    notify = ExpectedGroup(name="notify", topics=(TOPIC,))
    to_mail = (orders.database(), mail.database(groups=(notify,)))
    assert nights.run(*to_stock).outcome is CLEAN
    a_day_passes(orders)

    night = nights.run(*to_mail)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 5
    assert night.full_because == ("service mail was added", "service stock was taken out")
    assert mode(nights.run(*to_stock)) is Mode.INCREMENTAL


def test_rows_that_a_restored_copy_lacks_are_missed(nights, orders, stock):
    ids = received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    nights.run(*services)
    a_day_passes(orders)
    # The copy was made before the last two events arrived.
    execute(stock, "DELETE FROM shield_inbox WHERE event_id = ANY(:lost)", lost=ids[-2:])

    night = nights.run(*services)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 2
    (why,) = night.full_because
    assert why.startswith("the inbox of stock lacks what was its newest event")


def test_a_late_row_that_a_restored_copy_lacks_is_missed(nights, orders, stock):
    late = orders.write(age=3 * DAY)
    received_by(stock, "reserve", of=orders)
    # The event has the oldest id, and arrived last: the copy was made before.
    stock.receive(late, group="reserve", source="orders", age=3 * DAY, settled_age=2 * DAY)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    execute(stock, "DELETE FROM shield_inbox WHERE event_id = :late", late=late)

    night = nights.run(*services)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1
    (why,) = night.full_because
    assert why.startswith("the inbox of stock lacks what was its last settlement")


@pytest.mark.parametrize("push_down", [True, False])
def test_type_newly_received_by_a_group_is_due_for_all_nights(nights, orders, stock, push_down):
    received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database())
    assert nights.run(*services, push_down=push_down).outcome is CLEAN
    a_day_passes(orders)
    assert mode(nights.run(*services, push_down=push_down)) is Mode.INCREMENTAL
    a_day_passes(orders)
    new = orders.write(age=300)
    for group in ("reserve", "audit"):
        stock.receive(new, group=group, source="orders", age=300)

    night = nights.run(*services, push_down=push_down)

    assert night.totals == {Verdict.MATCHED: 7, Verdict.MISSING_DOWNSTREAM: 5}
    (why,) = night.full_because
    assert why.startswith("group audit of stock received orders.placed")
    # Until an operator repairs them: the night was not good.
    assert nights.run(*services, push_down=push_down).totals[Verdict.MISSING_DOWNSTREAM] == 5
    with_groups = (orders.database(), stock.database(groups=(RESERVE,)))
    assert nights.run(*with_groups, push_down=push_down).outcome is CLEAN


def test_replaced_topic_is_read_as_a_whole(nights, orders, stock, kafka):
    topic = Topic(kafka.bootstrap, logical=TOPIC).make()
    events = [topic.event(id=e, key=None) for e in received_by(stock, "reserve", of=orders)]
    topic.publish_at(datetime.now(UTC) - timedelta(days=3), *events)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    broker = BrokerAccess(bootstrap=kafka.bootstrap, topic_prefix=topic.prefix)
    first = nights.run(*services, broker=broker)
    a_day_passes(orders)
    second = nights.run(*services, broker=broker)
    a_day_passes(orders)
    assert (first.outcome, mode(second)) == (CLEAN, Mode.INCREMENTAL)
    topic.delete()
    topic.make()
    topic.publish_at(datetime.now(UTC) - timedelta(days=3), *events[:3])

    night = nights.run(*services, broker=broker)

    assert night.totals[Verdict.ABSENT_FROM_TOPIC] == 2
    assert night.full_because == (f"topic {topic.name} was deleted and created again",)


def test_unanswered_broker_query_leads_to_a_full_run(nights, orders, stock, kafka):
    topic = Topic(kafka.bootstrap, logical=TOPIC).make()
    events = [topic.event(id=e, key=None) for e in received_by(stock, "reserve", of=orders)]
    topic.publish_at(datetime.now(UTC) - timedelta(days=3), *events)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    broker = BrokerAccess(bootstrap=kafka.bootstrap, topic_prefix=topic.prefix)
    assert nights.run(*services, broker=broker).outcome is CLEAN
    a_day_passes(orders)

    # A broker does not answer a client with another protocol.
    night = nights.run(*services, broker=replace(broker, security_protocol="SSL"))

    assert (night.outcome, mode(night)) == (RunOutcome.NOT_JUDGED, Mode.FULL)
    (why,) = night.full_because
    assert why.startswith("whether the topics are those of the last good run could not be asked")


def test_recreated_tables_are_read_as_a_whole(nights, orders, stock):
    received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    nights.run(*services)
    a_day_passes(orders)
    for step in (
        "CREATE TABLE copied (LIKE shield_inbox INCLUDING ALL)",
        "INSERT INTO copied OVERRIDING SYSTEM VALUE SELECT * FROM shield_inbox",
        "DROP TABLE shield_inbox",
        "ALTER TABLE copied RENAME TO shield_inbox",
    ):
        execute(stock, step)
    # The copy has the indexes under other names.
    Schema(stock.engine, schema=stock.schema).upgrade()

    night = nights.run(*services)

    assert mode(night) is Mode.FULL
    assert night.full_because == (
        "the database of stock is another one, or its tables were recreated",
    )


def test_open_row_does_not_keep_the_next_night_from_advancing(nights, orders, stock):
    received_by(stock, "reserve", of=orders)
    orders.write(OutboxStatus.FAILED, age=3 * DAY, last_error="refused")
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    assert nights.run(*services).outcome is MISMATCHES
    a_day_passes(orders)

    night = nights.run(*services)

    assert (mode(night), night.totals[Verdict.PARKED]) == (Mode.INCREMENTAL, 1)


def taken_back(orders, stock, event_id, *, age, status=OutboxStatus.PROCESSED, compensated=True):
    """Let stock take an event of orders back, and orders compensate it."""
    of = {"kind": ROLLBACK, "causation_id": event_id, "causation_source": "orders", "age": age}
    rollback = stock.write(status, **of)
    if compensated:
        orders.receive(rollback, group="refund", source="stock", compensated_id=event_id, **of)
    return rollback


def test_effect_with_a_later_rollback_is_found_the_next_night(nights, orders, stock):
    first, *_ = received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    taken_back(orders, stock, first, age=300)

    night = nights.run(*services)

    assert mode(night) is Mode.INCREMENTAL
    assert night.totals == {Verdict.MATCHED: 1, Verdict.EFFECT_DESPITE_ROLLBACK: 1}
    assert nights.run(*services, selection=EVERYTHING).totals == {
        Verdict.MATCHED: 5,
        Verdict.EFFECT_DESPITE_ROLLBACK: 1,
    }


def test_effect_with_a_young_rollback_is_found_the_next_night(nights, orders, stock):
    first, *_ = received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    taken_back(orders, stock, first, age=5, status=OutboxStatus.INIT, compensated=False)
    assert nights.run(*services).totals == {Verdict.MATCHED: 5, Verdict.IN_FLIGHT: 1}
    a_day_passes(orders, days=1 / 24)
    execute(stock, AN_HOUR_AGO)

    night = nights.run(*services)

    assert mode(night) is Mode.INCREMENTAL
    assert night.totals[Verdict.EFFECT_DESPITE_ROLLBACK] == 1


AN_HOUR_AGO = """
    UPDATE shield_outbox SET created_at = now() - interval '1 hour',
                             due_at = now() - interval '1 hour'
    WHERE tx_kind = 'ROLLBACK'"""


def test_effect_after_compensation_is_found_without_a_moved_row(nights, orders, stock):
    first, *_ = received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE, COMPENSATING)))
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    # The receiver of the event compensates it too, and records an older time.
    of = {"kind": ROLLBACK, "causation_id": first, "causation_source": "orders"}
    rollback = orders.write(age=300, **of)
    stock.receive(rollback, group="reserve", source="orders", age=300, settled_age=4 * DAY, **of)
    execute(
        stock,
        "UPDATE shield_inbox SET compensated_id = :event WHERE event_id = :rollback",
        event=first,
        rollback=rollback,
    )

    night = nights.run(*services)

    assert mode(night) is Mode.INCREMENTAL
    assert night.totals[Verdict.EFFECT_DESPITE_ROLLBACK] == 1


def given_up_by_audit(orders, stock, event_id, *, age):
    """Let a group of stock give an event up, and orders compensate it."""
    execute(
        stock,
        "UPDATE shield_inbox SET status = 'MAX_RECONSUMED' "
        "WHERE event_id = :e AND consumer_group = 'audit'",
        e=event_id,
    )
    return taken_back(orders, stock, event_id, age=age)


OF_RESERVE = "WHERE event_id = :e AND consumer_group = 'reserve'"


def test_rollback_missing_in_another_service_is_found_next_night(nights, orders, stock):
    """No row of the group has moved; a group that is not declared to compensate lacks nothing."""
    first, *_ = received_by(stock, "reserve", "audit", of=orders)
    declared = (orders.database(), stock.database(groups=(RESERVE, AUDIT, COMPENSATING)))
    assert nights.run(*declared).outcome is CLEAN
    a_day_passes(orders)
    given_up_by_audit(orders, stock, first, age=300)

    night = nights.run(*declared)

    assert mode(night) is Mode.INCREMENTAL
    assert night.totals == {Verdict.MATCHED: 2, Verdict.REFUSED: 1, Verdict.MISSING_DOWNSTREAM: 1}
    (row,) = night.first_rows
    assert (row.pair.kind, row.pair.upstream, row.pair.downstream) == (ROLLBACK, "stock", "stock")
    assert row.pair.group == "reserve"
    alone = (orders.database(), stock.database(groups=(RESERVE, AUDIT)))
    assert nights.run(*alone).outcome is CLEAN


def test_first_compensation_causes_a_check_of_earlier_rollbacks(nights, orders, stock):
    first, second, *_ = received_by(stock, "reserve", "audit", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE, AUDIT)))
    given_up_by_audit(orders, stock, first, age=2 * DAY)
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    rollback = given_up_by_audit(orders, stock, second, age=300)
    of = {"kind": ROLLBACK, "causation_id": second, "causation_source": "orders"}
    done = {"group": "reserve", "source": "stock", "compensated_id": second}
    stock.receive(rollback, age=290, **of, **done)

    night = nights.run(*services)

    assert mode(night) is Mode.FULL
    assert "group reserve of stock received" in night.full_because[0]
    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1


def test_effect_after_a_settled_rollback_is_found_the_next_night(nights, orders, stock):
    """The group had a tombstone and compensated nothing, so no row of the rollback moves."""
    first, *_ = received_by(stock, "reserve", "audit", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE, AUDIT, COMPENSATING)))
    rollback = given_up_by_audit(orders, stock, first, age=2 * DAY)
    of = {"kind": ROLLBACK, "causation_id": first, "causation_source": "orders"}
    stock.receive(rollback, group="reserve", source="stock", age=2 * DAY, **of)
    execute(stock, f"UPDATE shield_inbox SET status = 'FENCED' {OF_RESERVE}", e=first)
    assert nights.run(*services).outcome is CLEAN
    a_day_passes(orders)
    execute(
        stock,
        "UPDATE shield_inbox SET status = 'PROCESSED', settled_at = now() - interval '5 hours' "
        f"{OF_RESERVE}",
        e=first,
    )

    night = nights.run(*services)

    assert mode(night) is Mode.INCREMENTAL
    assert night.totals[Verdict.ROLLBACK_NOT_COMPENSATED] == 1


@pytest.mark.parametrize("push_down", [True, False])
def test_open_row_of_an_undeclared_group_has_its_event(nights, orders, stock, push_down):
    """The event is alone in its bucket, so the group has no digest there to compare."""
    first, *_ = received_by(stock, "reserve", of=orders)
    stock.receive(first, InboxStatus.INIT, group="audit", source="orders", age=2 * DAY)
    services = (orders.database(), stock.database(groups=(RESERVE,)))

    night = nights.run(*services, push_down=push_down)

    assert night.totals == {Verdict.MATCHED: 5, Verdict.STUCK: 1}


def test_unexpected_rollback_is_known_with_another_looked_up_one(nights, orders, stock):
    """The rollback is looked up because its copy in another group is stuck; no other row moved."""
    first, *_ = received_by(stock, "reserve", "audit", of=orders)
    own = replace(RESERVE, name="undo", kind=ROLLBACK, may_be_unused=(TOPIC,))
    services = (orders.database(), stock.database(groups=(RESERVE, AUDIT, own)))
    rollback = given_up_by_audit(orders, stock, first, age=2 * DAY)
    of = {"kind": ROLLBACK, "causation_id": first, "causation_source": "orders"}
    done = {"group": "reserve", "source": "stock", "compensated_id": first}
    stock.receive(rollback, age=2 * DAY, **of, **done)
    execute(
        orders,
        "UPDATE shield_inbox SET status = 'PROCESSING', settled_at = NULL, attempts = 1, "
        "lease_token = gen_random_uuid(), lease_until = received_at + interval '1 minute' "
        "WHERE event_id = :rollback",
        rollback=rollback,
    )
    nights.run(*services)
    a_day_passes(orders)

    night = nights.run(*services)

    assert mode(night) is Mode.INCREMENTAL
    assert night.totals == {Verdict.MATCHED: 2, Verdict.REFUSED: 1, Verdict.STUCK: 1}


@pytest.mark.parametrize("side", ["outbox", "inbox"])
def test_dead_letter_without_an_error_is_read_until_it_has_one(nights, orders, stock, side):
    first, *_ = received_by(stock, "reserve", of=orders)
    services = (orders.database(), stock.database(groups=(RESERVE,)))
    if side == "outbox":
        orders.write(OutboxStatus.FAILED, age=DAY)
    else:
        execute(
            stock, "UPDATE shield_inbox SET status = 'MAX_RECONSUMED' WHERE event_id = :e", e=first
        )
        of = {"kind": ROLLBACK, "causation_id": first, "causation_source": "orders", "age": DAY}
        rollback = stock.write(**of)
        orders.receive(rollback, InboxStatus.DEAD, group="refund", source="stock", **of)

    for _ in range(2):
        night = nights.run(*services)
        a_day_passes(orders)
        assert (mode(night), night.totals[Verdict.PARKED]) == (Mode.FULL, 1)
        (told,) = night.problems
        assert told.startswith("1 rows between")
        assert "have no last_error" in told

    execute(orders, f"UPDATE shield_{side} SET last_error = 'x' WHERE status IN ('FAILED', 'DEAD')")
    assert nights.run(*services).problems == ()
    assert mode(nights.run(*services)) is Mode.INCREMENTAL


@pytest.mark.parametrize(
    ("ended", "verdict"), [(2, Verdict.IN_FLIGHT), (200, Verdict.STUCK)], ids=["now", "long ago"]
)
def test_row_queued_after_another_of_its_key_has_time_to_move(
    ended, verdict, nights, orders, stock
):
    key = {"key": "k", "age": 300}
    first = orders.write(settled_age=ended, **key)
    behind = orders.write(OutboxStatus.INIT, **key)
    alone = orders.write(OutboxStatus.INIT, age=300, key="another")
    received = {"group": "reserve", "source": "orders", **key}
    stock.receive(first, settled_age=ended, **received)
    handled = orders.write(**key)
    stock.receive(handled, InboxStatus.INIT, **received)

    night = nights.run(orders.database(), stock.database(groups=(RESERVE,)))

    found = {
        row.event_id: row.verdict
        for row in listed_rows(OutputFolder(path=nights.folder).rows, list(Verdict))
    }
    expected = {behind: verdict, handled: verdict, alone: Verdict.STUCK}
    assert found == expected, night.totals
