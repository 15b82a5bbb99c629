"""A repair repairs the findings of a run: once, audited, and nothing that changed since."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, event

from shieldtx.ports.repair import RepairAction, Repaired, RepairedEvent
from shieldtx.reconcile.repair.decisions import Policy
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.row_repair import pending_rollback_id
from shieldtx.store.tables import tables
from tests.support.repair_scenarios import (
    BOTH,
    Pair,
    audited,
    listed,
    owed,
    repair,
    rows,
    strand,
)
from tests.support.service import Service

ABSENT = (Verdict.ABSENT_FROM_TOPIC, RepairAction.PUBLISH_AGAIN)
MISSING = (Verdict.MISSING_DOWNSTREAM, RepairAction.PUBLISH_AGAIN)
OWED = (Verdict.NEITHER_EFFECT_NOR_COMPENSATION, RepairAction.RAISE_ROLLBACK)
IN_THE_OUTBOX = (Verdict.STUCK, RepairAction.RELEASE_EVENT)
IN_THE_INBOX = (Verdict.STUCK, RepairAction.RELEASE_ATTEMPT)
FAILED = (Verdict.PARKED, RepairAction.REPLAY_EVENT)
DEAD = (Verdict.PARKED, RepairAction.REPLAY_COMPENSATION)


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


# --- published again ------------------------------------------------------------------------------


def test_absent_event_is_published_again_with_one_effect(pair: Pair):
    pair.write(5)
    pair.work()
    pair.lose_inbox_rows("stock")

    report = pair.repair(pair.absent())

    assert report.repaired == {ABSENT: Repaired(done=5)}
    assert pair.orders.rows(
        "SELECT DISTINCT status, attempts, waiting, holds_key, unconfirmed, settled_at, "
        "lease_token, due_at <= now() FROM shield_outbox"
    ) == [("INIT", 0, False, False, True, None, None, True)]
    pair.work()
    assert pair.orders.outbox() == {"PROCESSED": 5}
    assert len(pair.stock.effects("stock")) == 5
    assert len(pair.stock.effects("mail")) == 5, "who had it before knows it by its id"


def test_a_second_repair_changes_nothing(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    found = pair.absent()
    pair.repair(found)
    before = rows(pair.orders, "SELECT * FROM shield_outbox ORDER BY seq")

    again = pair.repair(found)

    assert again.repaired == {ABSENT: Repaired(needless=3)}
    assert rows(pair.orders, "SELECT * FROM shield_outbox ORDER BY seq") == before
    assert len(pair.audits(pair.orders)) == 1


def test_event_already_published_again_counts_as_changed(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    found = pair.absent()
    pair.repair(found)
    pair.work()
    pair.lose_inbox_rows("stock")

    report = pair.repair(found)

    assert report.repaired == {ABSENT: Repaired(changed=2)}
    assert pair.orders.outbox() == {"PROCESSED": 2}


def test_a_requeued_event_blocks_no_other(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    pair.repair(pair.absent())
    pair.write(3)

    pair.work()

    assert pair.orders.outbox() == {"PROCESSED": 6}
    assert sorted(pair.stock.effects("stock")) == ["k0", "k0", "k1", "k1", "k2", "k2"]


def test_event_gone_from_the_outbox_counts_as_changed(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    found = pair.absent()
    pair.orders.execute("DELETE FROM shield_outbox")

    assert pair.repair(found).repaired == {ABSENT: Repaired(changed=2)}


def test_rows_possibly_purged_elsewhere_are_left_to_an_operator(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    policy = Policy(services=BOTH, named=frozenset(Verdict), young_since={"stock": tomorrow})

    report = pair.repair(pair.absent(), policy=policy)

    assert not report.repaired
    assert list(report.refused.values()) == [2]
    assert pair.orders.outbox() == {"PROCESSED": 2}


def test_a_missing_rollback_is_published_again(pair: Pair):
    pair.refuse_all(2)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.orders.execute("DELETE FROM effects")
    rollbacks = rows(pair.stock, "SELECT * FROM shield_outbox ORDER BY seq")
    missing = [
        listed(Verdict.MISSING_DOWNSTREAM, sent=rollback, group="orders") for rollback in rollbacks
    ]
    # All groups would receive events that a service of the file may have purged.
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    old = Policy(services=BOTH, young_since={"stock": tomorrow})

    assert pair.repair(missing, policy=old).repaired == {}
    report = pair.repair(missing, policy=Policy(services=BOTH))
    pair.work()

    assert report.repaired == {MISSING: Repaired(done=len(rollbacks))}
    assert len(pair.orders.effects("compensated")) == 2
    assert pair.repair(missing).repaired == {MISSING: Repaired(needless=len(rollbacks))}


# --- missing rollbacks ----------------------------------------------------------------------------


def test_a_missing_rollback_is_written_as_by_the_consumer(pair: Pair):
    pair.refuse = True
    pair.write(1)
    pair.work()
    (as_usual,) = rows(
        pair.stock, "SELECT * FROM shield_outbox WHERE causation_id IS NOT NULL LIMIT 1"
    )
    found = owed(pair, 0, "stock")

    report = pair.repair(found)

    assert report.repaired == {OWED: Repaired(done=1)}
    (raised,) = rows(pair.stock, "SELECT * FROM shield_outbox")
    own = {"event_id", "seq", "created_at", "due_at", "settled_at", "status", "attempts"}
    assert raised.keys() == as_usual.keys()
    assert {k: v for k, v in raised.items() if k not in own} == {
        k: v for k, v in as_usual.items() if k not in own
    }
    assert (raised["status"], raised["settled_at"]) == ("INIT", None)
    pair.work()
    assert pair.orders.effects("compensated") == ["k0"]
    assert pair.orders.inbox() == {"PROCESSED": 1}


def test_two_repairs_raise_one_rollback_even_after_a_purge(pair: Pair):
    found = owed(pair, 2, "stock")
    pair.repair(found)
    first = pair.stock.rows("SELECT event_id FROM shield_outbox ORDER BY 1")

    assert pair.repair(found).repaired == {OWED: Repaired(needless=2)}
    assert pair.stock.rows("SELECT event_id FROM shield_outbox ORDER BY 1") == first

    pair.stock.execute("DELETE FROM shield_outbox")
    pair.repair(found)
    assert pair.stock.rows("SELECT event_id FROM shield_outbox ORDER BY 1") == first
    pair.work()
    assert len(pair.orders.effects("compensated")) == 2


def test_one_rollback_covers_all_groups_of_a_service(pair: Pair):
    found = owed(pair, 2, "stock", "mail")

    report = pair.repair(found)

    assert report.repaired == {OWED: Repaired(done=2, needless=2)}
    assert pair.stock.outbox() == {"INIT": 2}


def test_existing_rollback_is_not_raised(pair: Pair):
    pair.refuse = True
    pair.write(2)
    pair.work()
    found = [
        listed(Verdict.NEITHER_EFFECT_NOR_COMPENSATION, received=received)
        for received in pair.received("stock")
    ]
    before = pair.stock.rows("SELECT event_id, status FROM shield_outbox ORDER BY 1")

    assert pair.repair(found).repaired == {OWED: Repaired(needless=2)}
    assert pair.stock.rows("SELECT event_id, status FROM shield_outbox ORDER BY 1") == before


def test_id_of_a_missing_rollback_has_the_time_of_its_event(pair: Pair):
    pair.write(1)
    (sent,) = pair.sent()

    one = pending_rollback_id(sent["event_id"], "orders", "stock")
    other = pending_rollback_id(sent["event_id"], "orders", "mail")

    assert one == pending_rollback_id(sent["event_id"], "orders", "stock") != other
    assert (one.version, one.variant) == (7, "specified in RFC 4122")
    assert one.int >> 80 == sent["event_id"].int >> 80


# --- released -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease_until", ["now() - interval '1 hour'", "NULL"])
def test_event_of_a_dead_relay_is_released_at_its_position(pair: Pair, lease_until: str):
    pair.write(3)
    strand(pair, "shield_outbox", lease_until)
    pair.orders.execute("UPDATE shield_outbox SET waiting = true, holds_key = true WHERE key='k1'")
    found = [listed(Verdict.STUCK, sent=sent) for sent in pair.sent()]

    report = pair.repair(found)

    assert report.repaired == {IN_THE_OUTBOX: Repaired(done=3)}
    assert pair.orders.rows(
        "SELECT status, attempts, unconfirmed, lease_token, lease_until, waiting, holds_key "
        "FROM shield_outbox ORDER BY seq"
    ) == [
        ("INIT", 1, True, None, None, False, False),
        ("INIT", 1, True, None, None, True, True),
        ("INIT", 1, True, None, None, False, False),
    ]
    assert pair.repair(found).repaired == {IN_THE_OUTBOX: Repaired(needless=3)}
    pair.work()
    assert pair.orders.outbox() == {"PROCESSED": 3}


def test_an_attempt_that_a_dead_worker_left_is_due_at_once(pair: Pair):
    pair.write(2)
    pair.work()
    strand(pair, "shield_inbox", "now() - interval '1 hour'")
    pair.stock.execute("UPDATE shield_inbox SET due_at = now() + interval '1 day'")
    found = [
        listed(Verdict.STUCK, sent=sent, received=received)
        for sent, received in zip(pair.sent(), pair.received("stock"), strict=True)
    ]

    report = pair.repair(found)

    assert report.repaired == {IN_THE_INBOX: Repaired(done=2)}
    assert (
        pair.stock.rows(
            "SELECT consumer_group, due_at <= now(), lease_token IS NULL FROM shield_inbox "
            "ORDER BY consumer_group, seq"
        )
        == [("mail", False, False)] * 2 + [("stock", True, True)] * 2
    )
    assert pair.repair(found).repaired == {IN_THE_INBOX: Repaired(needless=2)}


def test_a_live_lease_keeps_its_rows(pair: Pair):
    pair.write(2)
    pair.work()
    for table in ("shield_outbox", "shield_inbox"):
        strand(pair, table, "now() + interval '1 hour'")
    sent, received = pair.sent(), pair.received("stock")

    report = pair.repair(
        [
            *(listed(Verdict.STUCK, sent=row) for row in sent),
            listed(Verdict.STUCK, sent=None, received=received[0]),
        ]
    )

    assert report.repaired == {
        IN_THE_OUTBOX: Repaired(changed=2),
        IN_THE_INBOX: Repaired(changed=1),
    }
    assert pair.sent() == sent
    assert pair.received("stock") == received


# --- replayed -------------------------------------------------------------------------------------


def test_failed_and_dead_rows_are_replayed(pair: Pair):
    pair.write(1)
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), last_error = 'x', "
        "unconfirmed = true"
    )
    (failed,) = pair.sent()
    found = [listed(Verdict.PARKED, sent=failed)]

    assert pair.repair(found).repaired == {FAILED: Repaired(done=1)}
    pair.work()

    assert pair.orders.outbox() == {"PROCESSED": 1}
    assert pair.stock.effects("stock") == ["k0"]
    assert pair.repair(found).repaired == {FAILED: Repaired(changed=1)}


def test_a_dead_compensation_runs_again(pair: Pair):
    pair.refuse = True
    pair.write(1)
    pair.work()
    pair.orders.execute("DELETE FROM effects")
    pair.orders.execute(
        "UPDATE shield_inbox SET status = 'DEAD', last_error = 'x', compensated_id = NULL"
    )
    parked = rows(pair.orders, "SELECT * FROM shield_inbox ORDER BY seq")
    found = [listed(Verdict.PARKED, received=row, group="orders") for row in parked]

    assert pair.repair(found).repaired == {DEAD: Repaired(done=len(parked))}
    pair.work()

    assert pair.orders.effects("compensated") == ["k0"]


# --- two concurrent repairs, and the audit log ----------------------------------------------------


@pytest.mark.parametrize("batch", [3, 500])
def test_two_concurrent_repairs_do_each_row_once(pair: Pair, batch: int):
    pair.write(20)
    pair.work()
    pair.lose_inbox_rows("stock")
    absent = pair.absent()
    both, reports = threading.Barrier(2), []

    def repair(who: str) -> None:
        both.wait(timeout=10)
        reports.append(pair.repair(absent, who=who, batch=batch))

    people = [threading.Thread(target=repair, args=[who]) for who in ("ann", "bob")]
    for person in people:
        person.start()
    for person in people:
        person.join(timeout=30)

    assert len(reports) == 2
    assert sum(report.repaired[ABSENT].done for report in reports) == 20
    assert Counter(audited(pair.orders)) == Counter(str(row.event_id) for row in absent)
    pair.work()
    assert len(pair.stock.effects("stock")) == 20


def test_two_concurrent_repairs_raise_one_rollback(pair: Pair):
    stock, mail = owed(pair, 1, "stock"), owed(pair, 0, "mail")
    looked, reports = threading.Barrier(2), []

    def wait_for_the_other(connection, cursor, statement, *rest) -> None:
        # Both repairs have searched for a rollback, and found none.
        if statement.startswith("INSERT INTO shield_outbox"):
            looked.wait(timeout=10)

    def repair(found) -> None:
        reports.append(pair.repair(found).repaired[OWED])

    event.listen(Engine, "before_cursor_execute", wait_for_the_other)
    people = [threading.Thread(target=repair, args=[found]) for found in (stock, mail)]
    for person in people:
        person.start()
    for person in people:
        person.join(timeout=30)
    event.remove(Engine, "before_cursor_execute", wait_for_the_other)

    assert sorted((report.done, report.needless) for report in reports) == [(0, 1), (1, 0)]
    assert pair.stock.outbox() == {"INIT": 1}
    assert len(pair.audits(pair.stock)) == 1


def test_a_row_locked_by_another_transaction_is_not_waited_for(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    with pair.orders.engine.begin() as busy:
        busy.exec_driver_sql("SELECT * FROM shield_outbox ORDER BY seq LIMIT 1 FOR UPDATE")

        report = pair.repair(pair.absent())

    assert report.repaired == {ABSENT: Repaired(done=1, changed=1)}


def test_an_attempt_locked_by_its_worker_is_not_waited_for(pair: Pair):
    pair.write(2)
    pair.work()
    strand(pair, "shield_inbox", "now() - interval '1 hour'")
    found = [listed(Verdict.STUCK, received=received) for received in pair.received("stock")]
    impatient = pair.stock.engine.url.update_query_dict({"options": "-c lock_timeout=2000"})
    with pair.stock.engine.begin() as busy:
        busy.exec_driver_sql(
            "SELECT * FROM shield_inbox WHERE consumer_group = 'stock' LIMIT 1 FOR UPDATE"
        )

        tried = repair(pair.orders.engine.url, impatient, found, dry_run=True)
        report = repair(pair.orders.engine.url, impatient, found)

    assert tried.repaired == {IN_THE_INBOX: Repaired(done=2)}
    assert report.repaired == {IN_THE_INBOX: Repaired(done=1, changed=1)}


def test_repair_locks_only_its_own_rows(pair: Pair):
    pair.write(20)
    pair.work()
    pair.lose_inbox_rows("stock")
    absent = pair.absent()[:2]
    free: list[set[UUID]] = []

    def look(connection, cursor, statement, *rest) -> None:
        if statement.startswith("INSERT INTO shield_audit"):
            query = "SELECT event_id FROM shield_outbox FOR SHARE SKIP LOCKED"
            free.append({event_id for (event_id,) in pair.orders.rows(query)})

    event.listen(Engine, "before_cursor_execute", look)
    report = pair.repair(absent)
    event.remove(Engine, "before_cursor_execute", look)

    assert report.repaired == {ABSENT: Repaired(done=2)}
    written, repaired = ({row["event_id"] for row in pair.sent()}, {r.event_id for r in absent})
    assert free == [written - repaired]


def test_only_queried_events_are_reported_as_received(pair: Pair):
    pair.write(3)
    pair.work()
    store = SqlRepairStore(pair.stock.engine, tables(), source="stock")
    asked = [
        RepairedEvent(event_id=received["event_id"], group="stock", source="orders")
        for received in pair.received("stock")
    ]
    assert store.received(asked[:2]) == set(asked[:2])
    pair.lose_inbox_rows("stock")
    assert store.received(asked) == set()


def test_repair_is_audited_in_the_service_whose_rows_it_moved(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    absent = pair.absent()

    pair.repair(absent, batch=2)

    first, second = pair.audits(pair.orders)
    assert first[:3] == ("ann@desk", "repair", "reconciliation run r1")
    assert json.loads(first[3]) == {
        "verdict": "ABSENT_FROM_TOPIC",
        "action": "publish again",
        "events": {"outbox": [str(row.event_id) for row in absent[:2]]},
    }
    assert json.loads(second[3])["events"] == {"outbox": [str(absent[2].event_id)]}
    assert pair.audits(pair.stock) == []


def test_audit_names_groups_and_has_no_payload_and_no_error(pair: Pair):
    found = owed(pair, 1, "stock")
    pair.repair(found)

    ((*_, detail),) = pair.audits(pair.stock)

    assert json.loads(detail)["events"] == {"stock": [str(found[0].event_id)]}
    assert "hunter2" not in detail


def test_dry_run_reports_the_repairs_and_writes_nothing(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    absent = pair.absent()
    pair.orders.execute("UPDATE shield_outbox SET attempts = 9 WHERE key = 'k1'")
    before = pair.sent()

    report = pair.repair(absent, dry_run=True)

    assert report.repaired[ABSENT] == Repaired(done=2, changed=1)
    assert pair.sent() == before
    assert pair.audits(pair.orders) == []
