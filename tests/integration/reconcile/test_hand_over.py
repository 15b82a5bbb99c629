"""A missing event is handed over from its upstream's outbox to the group that lacks it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from shieldtx import Event
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.repair.decisions import BUSINESS_KEY, NOT_STORED, TOO_OLD, Policy
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.repair.tally import RepairReport
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store import transactions
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.tables import tables
from tests.support.encodings import of_another_encoding
from tests.support.log_records import logged
from tests.support.repair_scenarios import (
    BOTH,
    Pair,
    audited,
    before_statements,
    listed,
    lose,
    repair,
    rows,
)
from tests.support.service import QUICK, Service, drain_and_close, effect, make_topics

MISSING = Verdict.MISSING_DOWNSTREAM
HANDED_OVER = (MISSING, RepairAction.HAND_OVER)
PLAIN = Policy(services=BOTH)
OWN = ("seq", "received_at", "due_at", "settled_at", "status", "attempts")
"""The columns that differ between a row that a worker has settled and a new row."""


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


def write(pair: Pair, *events: dict[str, Any]) -> None:
    """Write events, each in a transaction of its own."""
    for given in events:
        with pair.orders.transaction() as session:
            pair.orders.app.outbox.add(session, Event(type="orders.placed", **given))


def test_missing_event_is_stored_as_a_newly_received_one(pair: Pair):
    headers = {"tenant": "a", "place": "Zürich"}
    write(pair, {"key": "k", "biz_key": "b1", "payload": {"pin": "é"}, "headers": headers}, {})
    pair.work()
    as_received = pair.received("stock")
    sent = pair.sent()
    pair.lose_inbox_rows("stock")

    report = pair.repair(pair.missing("stock"), policy=PLAIN)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=2)}
    handed = pair.received("stock")
    of_no_record = {"record_partition": None, "record_offset": None}
    assert [{k: v for k, v in row.items() if k not in OWN} for row in handed] == [
        {k: v for k, v in row.items() if k not in OWN} | of_no_record for row in as_received
    ]
    assert [[row[name] for name in ("status", "attempts", "settled_at")] for row in handed] == [
        ["INIT", 0, None],
        ["INIT", 0, None],
    ]
    assert all(row["due_at"] <= datetime.now(UTC) for row in handed)
    assert pair.sent() == sent
    pair.work()
    assert len(pair.stock.effects("stock")) == 2
    assert len(pair.stock.effects("mail")) == 2


def test_only_groups_that_lack_an_event_get_a_row(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock", "mail")

    report = pair.repair(pair.missing("stock"), policy=PLAIN)
    assert report.repaired == {HANDED_OVER: Repaired(done=3)}
    assert pair.received("mail") == []
    report = pair.repair(pair.missing("stock", "mail"), policy=PLAIN)
    assert report.repaired == {HANDED_OVER: Repaired(done=3, needless=3)}

    pair.work()
    assert Counter(pair.stock.effects()) == Counter({"k0": 2, "k1": 2, "k2": 2})


@pytest.mark.parametrize("at_once", [True, False])
def test_event_absent_from_groups_and_topic_has_its_effects_once(pair: Pair, at_once: bool):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock", "mail")
    missing, absent = pair.missing("stock", "mail"), pair.absent()
    published = (Verdict.ABSENT_FROM_TOPIC, RepairAction.PUBLISH_AGAIN)

    if at_once:
        report = pair.repair([*absent, *missing])
        assert report.repaired == {
            HANDED_OVER: Repaired(done=6),
            published: Repaired(done=3),
        }
    else:
        assert pair.repair(missing).repaired == {HANDED_OVER: Repaired(done=6)}
        assert pair.repair(absent).repaired == {published: Repaired(done=3)}
    pair.work()

    assert pair.orders.outbox() == {"PROCESSED": 3}
    assert Counter(pair.stock.effects()) == Counter({"k0": 2, "k1": 2, "k2": 2})


def test_second_repair_before_or_after_effects_changes_nothing(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    pair.repair(missing, policy=PLAIN)

    for _ in range(2):
        before = pair.received("stock")
        again = pair.repair(missing, policy=PLAIN)
        assert again.repaired == {HANDED_OVER: Repaired(needless=3)}
        assert pair.received("stock") == before
        pair.work()
    assert len(pair.audits(pair.stock)) == 1


@pytest.mark.parametrize("dry_run", [True, False])
def test_late_event_is_not_handed_over(pair: Pair, dry_run: bool):
    pair.write(2)
    pair.work()

    report = pair.repair(pair.missing("stock"), policy=PLAIN, dry_run=dry_run)

    assert report.repaired == {HANDED_OVER: Repaired(needless=2)}
    assert pair.audits(pair.stock) == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_event_received_during_its_hand_over_is_stored_once(pair: Pair, level: str):
    """The consumer has stored the event before the INSERT, in a transaction that is still open."""
    set_level = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    stock_url = pair.stock.engine.url.update_query_dict({"options": set_level})
    pair.write(2)
    pair.work()
    kept = pair.received("stock")[0]
    pair.lose_inbox_rows("stock")
    inserted = threading.Event()
    with pair.stock.engine.connect() as consumer:
        insert_row(consumer, kept)

        def commit_when_waited_for() -> None:
            inserted.wait(timeout=10)
            wait_until_blocked(pair)
            consumer.commit()

        committing = threading.Thread(target=commit_when_waited_for)
        committing.start()
        with before_statements(
            lambda text: inserted.set() if text.startswith("INSERT INTO shield_inbox") else None
        ):
            missing = pair.missing("stock")
            report = repair(pair.orders.engine.url, stock_url, missing, policy=PLAIN)
        committing.join(timeout=10)

    assert report.repaired == {HANDED_OVER: Repaired(done=1, needless=1)}


@pytest.mark.parametrize("deadlocks", [1, 2])
def test_deadlock_with_a_consumer_is_retried(
    pair: Pair,
    deadlocks: int,
    caplog: pytest.LogCaptureFixture,
):
    """The consumer stores the same two events in reverse order, in a transaction of its own."""
    pair.write(2)
    pair.work()
    kept = pair.received("stock")
    pair.lose_inbox_rows("stock")
    stored, inserting = threading.Semaphore(0), threading.Semaphore(0)
    committed: list[bool] = []

    def consume() -> None:
        for number in range(deadlocks):
            with pair.stock.engine.connect() as consumer:
                # The server aborts the transaction that detects the deadlock: this one must not
                # check for it.
                consumer.exec_driver_sql("SET LOCAL deadlock_timeout = '60s'")
                insert_row(consumer, kept[1])
                stored.release()
                inserting.acquire(timeout=20)
                wait_until_blocked(pair)
                # The repair waits for the second event, and this transaction waits for the first.
                insert_row(consumer, kept[0])
                is_last = number == deadlocks - 1
                consumer.commit() if is_last else consumer.rollback()
                committed.append(is_last)
        stored.release()

    consuming = threading.Thread(target=consume)
    consuming.start()

    def look(text: str) -> None:
        """Let the repair store events only after the consumer has begun to store them."""
        if text.startswith("INSERT INTO shield_inbox") and "unnest" in text:
            stored.acquire(timeout=20)
            inserting.release()

    with before_statements(look):
        report = pair.repair(pair.missing("stock"), policy=PLAIN)
    consuming.join(timeout=30)

    assert len(logged(caplog.records, "transaction_retried")) == deadlocks
    assert committed == [False] * (deadlocks - 1) + [True]
    assert report.repaired == {HANDED_OVER: Repaired(needless=2)}
    assert len(pair.received("stock")) == 2
    assert pair.audits(pair.stock) == []


def insert_row(connection: Any, row: dict[str, Any]) -> None:
    columns = {name: value for name, value in row.items() if name != "seq"}
    connection.exec_driver_sql(
        f"INSERT INTO shield_inbox ({', '.join(columns)}) "
        f"VALUES ({', '.join(f'%({name})s' for name in columns)})",
        columns,
    )


def wait_until_blocked(pair: Pair) -> None:
    """Wait until a transaction in this database waits for a row of another transaction."""
    waiting = (
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE locktype = 'transactionid' AND NOT granted AND datname = current_database()"
    )
    deadline = time.monotonic() + 20
    while not pair.stock.rows(waiting)[0][0]:
        assert time.monotonic() < deadline, "no transaction waits for another one"
        time.sleep(0.01)


def test_repeated_deadlocks_end_the_repair(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    pair.write(1)
    pair.work()
    pair.lose_inbox_rows("stock")
    monkeypatch.setattr(transactions, "_FIRST_PAUSE_S", 0)
    tried: list[str] = []

    def fail(text: str) -> None:
        if text.startswith("INSERT INTO shield_inbox"):
            tried.append(text)
            deadlock = psycopg.errors.DeadlockDetected("deadlock detected")
            raise DBAPIError(text, {}, deadlock)

    with before_statements(fail), pytest.raises(DBAPIError, match="deadlock detected"):
        pair.repair(pair.missing("stock"), policy=PLAIN)

    assert len(tried) == transactions.TRIES
    assert pair.received("stock") == []


def test_tombstone_is_left_unchanged(pair: Pair):
    pair.write(2)
    pair.work()
    pair.stock.execute("UPDATE shield_inbox SET status = 'FENCED' WHERE consumer_group = 'stock'")
    before = pair.received("stock")

    report = pair.repair(pair.missing("stock"), policy=PLAIN)

    assert report.repaired == {HANDED_OVER: Repaired(needless=2)}
    assert pair.received("stock") == before


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("change", "is_needless"),
    [
        ("UPDATE shield_outbox SET status = 'INIT', settled_at = NULL", True),
        ("UPDATE shield_outbox SET status = 'PROCESSING', settled_at = NULL", True),
        ("UPDATE shield_outbox SET status = 'FAILED', last_error = 'x'", False),
        ("UPDATE shield_outbox SET settled_at = now()", False),
        ("UPDATE shield_outbox SET attempts = 9", False),
        ("DELETE FROM shield_outbox", False),
    ],
)
def test_an_event_whose_outbox_row_has_moved_is_left_alone(
    pair: Pair, change: str, is_needless: bool, dry_run: bool
):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    pair.orders.execute(f"{change} WHERE event_id = :event", event=missing[0].event_id)

    report = pair.repair(missing, policy=PLAIN, dry_run=dry_run)

    moved = Repaired(needless=1) if is_needless else Repaired(changed=1)
    assert report.repaired == {HANDED_OVER: Repaired(done=1).plus(moved)}


def test_locked_outbox_row_is_read_anyway(pair: Pair):
    """So that a second repair does not store later events before the first has stored this one."""
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    with pair.orders.engine.begin() as busy:
        busy.exec_driver_sql("SELECT * FROM shield_outbox FOR UPDATE")

        report = pair.repair(pair.missing("stock"), policy=PLAIN)

    assert report.repaired == {HANDED_OVER: Repaired(done=2)}


def test_hand_over_is_audited_in_the_receiving_service(pair: Pair):
    pair.write(3)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")

    pair.repair(missing, policy=PLAIN, batch=2)

    first, second = pair.audits(pair.stock)
    assert first[:3] == ("ann@desk", "repair", "reconciliation run r1")
    assert json.loads(first[3]) == {
        "verdict": "MISSING_DOWNSTREAM",
        "action": "hand over",
        "events": {"stock": [str(row.event_id) for row in missing[:2]]},
    }
    assert json.loads(second[3])["events"] == {"stock": [str(missing[2].event_id)]}
    assert "hunter2" not in first[3]
    assert pair.audits(pair.orders) == []


def test_a_dry_run_writes_nothing(pair: Pair):
    pair.write(3)
    pair.work()
    lose(pair, "stock", *(row["event_id"] for row in pair.sent()[:2]))
    before = pair.received("stock")

    with before_statements(assert_reads):
        report = pair.repair(pair.missing("stock"), policy=PLAIN, dry_run=True)

    assert report.repaired == {HANDED_OVER: Repaired(done=2, needless=1)}
    assert pair.received("stock") == before
    assert pair.audits(pair.stock) == []


def assert_reads(statement: str) -> None:
    """The statement does not write, and does not read a payload."""
    assert statement.startswith("SELECT"), statement
    assert "shield_outbox.payload," not in statement


# --- what the group does not accept --------------------------------------------------------------


def test_other_event_of_the_business_key_is_left_to_an_operator(pair: Pair):
    """The first event is purged from the outbox, whose unique key no longer has it, and is
    received.
    """
    write(pair, {"key": "a", "biz_key": "b1"}, {"key": "b", "biz_key": "b2"})
    pair.work()
    pair.orders.execute("DELETE FROM shield_outbox")
    write(pair, {"key": "c", "biz_key": "b1"}, {"key": "d", "biz_key": "b3"})
    pair.work()
    parked = pair.stock.rows("SELECT consumer_group, reason FROM shield_parked ORDER BY 1")
    assert [group for group, _ in parked] == ["mail", "stock"]
    before = pair.received("stock")
    lose(pair, "stock", pair.sent()[1]["event_id"])

    for dry_run in (True, False):
        report = pair.repair(pair.missing("stock"), policy=PLAIN, dry_run=dry_run)
        assert report.refused == {(MISSING, BUSINESS_KEY): 1}
        assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    assert len(pair.received("stock")) == len(before)
    assert "shieldtx dead list --status PARKED" in BUSINESS_KEY


def test_first_missing_event_of_a_business_key_is_handed_over(pair: Pair):
    """An outbox prevents such events, unless its unique index is missing."""
    write(pair, *({"key": name, "biz_key": name} for name in "abc"))
    pair.work()
    pair.lose_inbox_rows("stock")
    pair.orders.execute("DROP INDEX shield_outbox_biz_key_key")
    pair.orders.execute("UPDATE shield_outbox SET biz_key = 'b1' WHERE key <> 'c'")
    missing = pair.missing("stock")

    tried = pair.repair(missing, policy=PLAIN, dry_run=True)
    report = pair.repair(missing, policy=PLAIN)

    assert tried.repaired == report.repaired == {HANDED_OVER: Repaired(done=2)}
    assert tried.refused == report.refused == {(MISSING, BUSINESS_KEY): 1}
    assert [row["key"] for row in pair.received("stock")] == ["a", "c"]


def test_business_key_of_other_source_group_or_type_is_ignored(pair: Pair):
    write(pair, {"key": "a", "biz_key": "b1"})
    pair.work()
    (kept,) = pair.received("mail")
    pair.lose_inbox_rows("stock")
    pair.stock.execute(
        "UPDATE shield_inbox SET consumer_group = 'stock', source = 'web', event_id = :id",
        id=kept["event_id"],
    )
    missing = pair.missing("stock")

    tried = pair.repair(missing, policy=PLAIN, dry_run=True)
    report = pair.repair(missing, policy=PLAIN)

    assert tried.repaired == report.repaired == {HANDED_OVER: Repaired(done=1)}


def test_event_that_the_database_refuses_blocks_no_other(
    pair: Pair, caplog: pytest.LogCaptureFixture
):
    write(pair, *({"key": f"k{n}", "payload": {"pin": f"hunter{n}"}} for n in range(5)))
    pair.work()
    pair.lose_inbox_rows("stock")
    refusal = "CHECK (payload NOT LIKE '%hunter2%' OR consumer_group = 'mail')"
    pair.stock.execute(f"ALTER TABLE shield_inbox ADD CONSTRAINT picky {refusal}")

    report = pair.repair(pair.missing("stock"), policy=PLAIN)

    assert report.refused == {(MISSING, NOT_STORED): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=4)}
    [refused] = logged(caplog.records, "hand_over_refused")
    assert refused["event_id"] == str(pair.sent()[2]["event_id"])
    assert "hunter2" not in caplog.text
    assert len(audited(pair.stock)) == 4


def test_unencodable_characters_block_no_other_event(pair: Pair):
    names = ("Müller", "Łódź", "Søren")
    write(pair, *({"key": name, "biz_key": name, "payload": name} for name in names))
    pair.work()
    with of_another_encoding(pair.stock) as stock:
        for dry_run in (True, False):
            report = repair(
                pair.orders.engine.url,
                stock.engine.url,
                pair.missing("stock"),
                policy=PLAIN,
                dry_run=dry_run,
            )

        assert report.refused == {(MISSING, NOT_STORED): 1}
        assert report.repaired == {HANDED_OVER: Repaired(done=2)}
        stored = stock.rows("SELECT key, payload FROM shield_inbox ORDER BY seq")
        assert stored == [(name, json.dumps(name, ensure_ascii=False)) for name in names[::2]]


# --- the age of an event, and which other services have it ---------------------------------------


def test_only_the_retention_of_the_receiving_service_counts(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    own = Policy(services=BOTH, young_since={"stock": tomorrow})
    report = pair.repair(missing, policy=own)
    assert report.repaired == {}
    assert [(verdict, rows) for (verdict, _), rows in report.refused.items()] == [(MISSING, 2)]

    others = Policy(services=BOTH, young_since={"orders": tomorrow})
    assert pair.repair(missing, policy=others).repaired == {HANDED_OVER: Repaired(done=2)}


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_sent_again_has_the_age_of_its_first_copy(pair: Pair, dry_run: bool):
    """As an event absent from the topic: the group had received it, and has purged it since."""
    write(pair, {"key": "again"}, {"key": "delayed"}, {"key": "again and young"})
    pair.work()
    pair.lose_inbox_rows("stock")
    pair.orders.execute("UPDATE shield_outbox SET unconfirmed = true WHERE key LIKE 'again%'")
    pair.orders.execute(
        "UPDATE shield_outbox SET created_at = created_at - interval '9 days' "
        "WHERE key <> 'again and young'"
    )
    week = datetime.now(UTC) - timedelta(days=7)
    policy = Policy(services=BOTH, young_since={"stock": week})

    report = pair.repair(pair.missing("stock"), policy=policy, dry_run=dry_run)

    assert report.refused == {(MISSING, TOO_OLD): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=2)}


def test_events_of_a_topic_with_other_readers_are_handed_over(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    policy = Policy(services=BOTH, for_others={"orders": Others.named("orders.placed")})

    report = pair.repair(pair.missing("stock"), policy=policy)

    assert report.repaired == {HANDED_OVER: Repaired(done=2)}


def test_service_outside_the_file_gets_no_copy_of_purged_events(
    make_service: Callable[..., Service],
):
    """The file names orders and mail, and stock keeps its inbox for a day."""
    orders = make_service("orders")
    stock = make_service("stock")
    mail = make_service("mail")
    orders.app.declare("orders.placed")
    for service in (stock, mail):
        name = service.app.settings.source
        service.app.consumer(name).handles("orders.placed", retry=QUICK)(effect(name))
    make_topics(orders, stock, mail)
    with orders.transaction() as session:
        for n in range(4):
            orders.app.outbox.add(session, Event(type="orders.placed", key=f"k{n}", payload=n))

    def work() -> None:
        consumers = [stock.app.build_consumer("stock"), mail.app.build_consumer("mail")]
        drain_and_close(orders.relay(), *consumers)

    work()
    for service, table in ((orders, "outbox"), (stock, "inbox"), (mail, "inbox")):
        service.execute(f"UPDATE shield_{table} SET settled_at = settled_at - interval '2 days'")
    mail.execute(
        "DELETE FROM shield_inbox WHERE event_id IN (SELECT event_id FROM shield_inbox LIMIT 2)"
    )
    mail.execute(
        "DELETE FROM effects WHERE event_id NOT IN (SELECT event_id::text FROM shield_inbox)"
    )
    stock.execute("DELETE FROM shield_inbox WHERE settled_at < now() - interval '1 day'")
    known = {row["event_id"] for row in rows(mail, "SELECT event_id FROM shield_inbox")}
    missing = [
        replace(listed(MISSING, sent=sent, group="mail"), downstream="mail")
        for sent in rows(orders, "SELECT * FROM shield_outbox ORDER BY seq")
        if sent["event_id"] not in known
    ]
    stores = {
        service.app.settings.source: SqlRepairStore(
            service.engine, tables(), source=service.app.settings.source
        )
        for service in (orders, mail)
    }
    policy = Policy(services=frozenset(stores))

    report = Repair(stores=stores, policy=policy, run_id="r1", who="ann").run(missing)
    work()

    assert report.repaired == {HANDED_OVER: Repaired(done=2)}
    assert (len(stock.effects()), len(mail.effects())) == (4, 4)


# --- two concurrent repairs ----------------------------------------------------------------------


@pytest.mark.parametrize("batch", [3, 500])
def test_two_concurrent_repairs_hand_each_event_over_once(pair: Pair, batch: int):
    """The events of each key stay in order."""
    pair.write(20)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    both, reports = threading.Barrier(2), []

    def repair(who: str) -> None:
        both.wait(timeout=10)
        reports.append(pair.repair(missing, who=who, batch=batch, looked_up=batch, policy=PLAIN))

    people = [threading.Thread(target=repair, args=[who]) for who in ("ann", "bob")]
    for person in people:
        person.start()
    for person in people:
        person.join(timeout=30)

    assert len(reports) == 2
    assert [report.refused for report in reports] == [{}, {}]
    assert sum(report.repaired[HANDED_OVER].done for report in reports) == 20
    assert Counter(audited(pair.stock)) == Counter(str(row.event_id) for row in missing)
    for key in ("k0", "k1", "k2"):
        assert order(pair, key) == [row["event_id"] for row in pair.sent() if row["key"] == key]
    pair.work()
    assert len(pair.stock.effects("stock")) == 20


def test_repair_waits_for_the_first_and_then_changes_nothing(pair: Pair):
    """The first repair has stored one of two events of a key when the second repair starts."""
    pair.write(4)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    reports, stored, second_waits = [], threading.Event(), threading.Event()
    first = threading.current_thread()

    def look(statement: str) -> None:
        if statement.startswith("INSERT INTO shield_audit"):
            if threading.current_thread() is first and not stored.is_set():
                stored.set()
                second_waits.wait(timeout=10)
        elif (
            statement.startswith("INSERT INTO shield_inbox")
            and threading.current_thread() is not first
        ):
            second_waits.set()

    def repair() -> None:
        stored.wait(timeout=10)
        reports.append(pair.repair(missing, batch=1, policy=PLAIN))

    second = threading.Thread(target=repair)
    second.start()
    with before_statements(look):
        reports.append(pair.repair(missing, batch=1, policy=PLAIN))
        second.join(timeout=30)

    assert sum(report.repaired[HANDED_OVER].done for report in reports) == 4
    assert order(pair, "k0") == [row["event_id"] for row in pair.sent() if row["key"] == "k0"]


def test_event_handed_over_by_another_repair_counts_as_needless(pair: Pair):
    """Later events do not overtake the event."""
    pair.write(4)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    begun: list[str] = []
    others: list[RepairReport] = []

    def come_between(statement: str) -> None:
        if "max(shield_inbox.event_time)" in statement and not begun:
            begun.append(statement)
            others.append(pair.repair(missing, policy=PLAIN))

    with before_statements(come_between):
        report = pair.repair(missing, policy=PLAIN)

    assert others[0].repaired == {HANDED_OVER: Repaired(done=4)}
    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(needless=4)}


def order(pair: Pair, key: str) -> list[Any]:
    """Return the events of a key in the order of the inbox."""
    query = (
        "SELECT event_id FROM shield_inbox WHERE consumer_group = 'stock' AND key = :key "
        "ORDER BY seq"
    )
    return [row["event_id"] for row in rows(pair.stock, query, key=key)]
