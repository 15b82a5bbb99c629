"""Which FAILED events a repair replays: real databases, relays and consumers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text

from shieldtx import Event
from shieldtx.ports.broker import Delivery, DeliveryOutcome, Record
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.repair.decisions import (
    AFTER_LATER_ONES,
    AMONG_OTHERS,
    FOR_OTHERS,
    UNDONE_LOCALLY,
    Policy,
)
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_scenarios import BOTH, Pair, absent, before_statements, listed, lose, rows
from tests.support.service import Service, Wire, answer

PARKED = Verdict.PARKED
REPLAYED = (PARKED, RepairAction.REPLAY_EVENT)
BY_NAME = Policy(services=BOTH, named=frozenset({PARKED}))
OUT_OF_ORDER = Policy(services=BOTH, named=frozenset({PARKED}), out_of_order=True)


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


def write(pair: Pair, *keys: str) -> None:
    """Write events one by one, so that their numbers are in this order."""
    for key in keys:
        with pair.orders.transaction() as session:
            placed = Event(type="orders.placed", key=key, payload={"key": key})
            pair.orders.app.outbox.add(session, placed)


def fail(pair: Pair, *keys: str) -> None:
    """Fail events as if attempts had no answer and the last was refused: nothing was undone."""
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), last_error = 'refused', "
        "unconfirmed = true WHERE status = 'INIT' AND key = ANY(:keys)",
        keys=list(keys),
    )


def parked(pair: Pair, *groups: str) -> list[ListedRow]:
    return [
        listed(PARKED, sent=sent, group=group)
        for sent in pair.sent()
        if sent["status"] == "FAILED"
        for group in groups
    ]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("policy", [BY_NAME, OUT_OF_ORDER])
def test_event_undone_by_its_service_is_left_to_an_operator(
    pair: Pair, wire: Wire, policy: Policy, dry_run: bool
):
    @pair.orders.app.local_rollback("orders.placed")
    def undo(session, event):
        of_event = {"i": str(event.id), "k": event.key}
        session.execute(text("INSERT INTO effects VALUES (:i, :k, 'undone')"), of_event)

    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED)
    write(pair, "k")
    pair.work()
    wire.fate = lambda record: None
    assert pair.orders.effects("undone") == ["k"]

    report = pair.repair(parked(pair, "stock", "mail"), policy=policy, dry_run=dry_run)
    pair.work()

    assert report.refused == {(PARKED, UNDONE_LOCALLY): 2}
    assert report.repaired == {}
    assert pair.orders.outbox() == {"FAILED": 1}
    assert pair.stock.effects("stock") == []
    assert "`shieldtx dead replay`" in UNDONE_LOCALLY


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("later", ["PROCESSED", "INIT"])
def test_event_before_later_ones_of_its_key_needs_out_of_order(
    pair: Pair, later: str, dry_run: bool
):
    write(pair, "k0", "k1")
    fail(pair, "k0", "k1")
    write(pair, "k0")
    if later == "PROCESSED":
        pair.work()
    found = parked(pair, "stock")

    report = pair.repair(found, policy=BY_NAME, dry_run=True)
    allowed = pair.repair(found, policy=OUT_OF_ORDER, dry_run=dry_run)

    assert report.refused == {(PARKED, AFTER_LATER_ONES): 1}
    assert report.repaired == {REPLAYED: Repaired(done=1)}
    assert allowed.refused == {}
    assert allowed.repaired == {REPLAYED: Repaired(done=2, out_of_order=1)}


def test_failed_events_of_a_key_are_replayed_in_their_order(pair: Pair):
    write(pair, *"aaa")
    fail(pair, "a")

    report = pair.repair(parked(pair, "stock")[::-1], policy=BY_NAME, batch=1, looked_up=1)
    pair.work()

    assert report.repaired == {REPLAYED: Repaired(done=3)}
    assert report.refused == {}
    arrived = [row["event_id"] for row in pair.received("stock")]
    assert arrived == [row["event_id"] for row in pair.sent()]


def test_later_event_written_between_two_batches_is_seen(pair: Pair):
    write(pair, "k0", "k1")
    fail(pair, "k0", "k1")
    found, batches = parked(pair, "stock"), []

    def write_after_the_first(statement: str) -> None:
        if statement.startswith("INSERT INTO shield_audit"):
            batches.append(statement)
            if len(batches) == 1:
                write(pair, "k1")

    with before_statements(write_after_the_first):
        report = pair.repair(found, policy=BY_NAME, batch=1)

    assert report.refused == {(PARKED, AFTER_LATER_ONES): 1}
    assert report.repaired == {REPLAYED: Repaired(done=1)}


def test_missing_event_is_handed_over_before_a_later_replay(pair: Pair):
    write(pair, "k")
    pair.work()
    pair.lose_inbox_rows("stock")
    write(pair, "k")
    fail(pair, "k")
    lost, failed = pair.sent()
    listed_ = [
        listed(PARKED, sent=failed),
        listed(Verdict.MISSING_DOWNSTREAM, sent=lost),
    ]
    both = Policy(services=BOTH, named=frozenset({PARKED, Verdict.MISSING_DOWNSTREAM}))

    report = pair.repair(listed_, policy=both, batch=1, looked_up=1)
    pair.work()

    assert report.refused == {}
    arrived = [row["event_id"] for row in pair.received("stock")]
    assert arrived == [lost["event_id"], failed["event_id"]]


@pytest.mark.parametrize("unconfirmed", [True, False])
def test_failed_rollback_of_a_shared_topic_is_not_replayed(pair: Pair, unconfirmed: bool):
    """The service that wrote the event declares that other services read the topic."""
    pair.refuse_all(1)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.stock.execute(
        "UPDATE shield_outbox SET status = 'FAILED', last_error = 'x', unconfirmed = :unconfirmed",
        unconfirmed=unconfirmed,
    )
    failed = rows(pair.stock, "SELECT * FROM shield_outbox")
    found = [listed(PARKED, sent=row, group="orders") for row in failed]
    for_others = {"orders": Others.named("orders.placed")}

    report = pair.repair(found, policy=replace(BY_NAME, for_others=for_others))

    refused = {(PARKED, FOR_OTHERS): len(failed)}
    assert report.refused == (refused if unconfirmed else {})


def test_advice_on_a_delivered_failed_event_repairs_it(pair: Pair, wire: Wire):
    """The local rollback was withheld, so that both sides have kept their part."""
    undone = []
    pair.orders.app.local_rollback("orders.placed")(lambda session, event: undone.append(event))
    first = iter([answer(DeliveryOutcome.UNCONFIRMED)])

    def fate(record: Record) -> Delivery:
        unanswered = next(first, None)
        wire.lose_answers = unanswered is not None
        return unanswered or answer(DeliveryOutcome.REJECTED)

    wire.fate = fate
    write(pair, "k")
    deadline = time.monotonic() + 20
    while pair.orders.outbox() != {"FAILED": 1}:
        assert time.monotonic() < deadline
        pair.work()
    (sent,), (got,) = pair.sent(), pair.received("stock")
    wire.fate, wire.lose_answers = (lambda record: None), False

    report = pair.repair([listed(Verdict.STATUS_DISAGREES, sent=sent, received=got)])
    ((_, advice),) = report.refused
    letters = pair.orders.app.stores.dead_letters()
    (letter,) = letters.find(sent["event_id"])
    letters.replay([letter], who="ann@desk")
    pair.work()

    assert (letter.unconfirmed, undone) == (True, [])
    assert "both sides have kept their part: undo nothing. `shieldtx dead replay` it" in advice
    assert pair.orders.outbox() == {"PROCESSED": 1}
    assert pair.stock.effects("stock") == ["k"]


def test_failed_rollback_is_replayed_after_any_events_of_its_key(pair: Pair):
    """A rollback undoes one event, and its own failure undoes nothing."""
    pair.refuse_all(1)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.orders.execute("DELETE FROM effects")
    pair.stock.execute("UPDATE shield_outbox SET status = 'FAILED', last_error = 'refused'")
    failed = rows(pair.stock, "SELECT * FROM shield_outbox")
    found = [listed(PARKED, sent=row, group="orders") for row in failed]

    report = pair.repair(found, policy=BY_NAME)
    pair.work()

    assert report.repaired == {REPLAYED: Repaired(done=len(failed))}
    assert pair.orders.effects("compensated") == ["k0"]


# --- a dry run counts the same rows as the repair -------------------------------------------------

ABSENT = Verdict.ABSENT_FROM_TOPIC
PUBLISHED = (ABSENT, RepairAction.PUBLISH_AGAIN)
BOTH_NAMED = Policy(services=BOTH, named=frozenset({PARKED, ABSENT}))


def fail_after(pair: Pair, absent_: str, failed: str) -> list[ListedRow]:
    """Lose one event for a group, and let a later event of the same or another key fail."""
    write(pair, absent_, failed, "other")
    pair.work()
    lost, late, _ = pair.sent()
    lose(pair, "stock", lost["event_id"], late["event_id"])
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), last_error = 'timed out', "
        "unconfirmed = true WHERE event_id = :event",
        event=late["event_id"],
    )
    return [*absent(pair, 0), *parked(pair, "stock")]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("out_of_order", [True, False])
def test_copy_before_a_replayed_event_of_its_key_is_late(
    pair: Pair, out_of_order: bool, dry_run: bool
):
    found = fail_after(pair, "k", "k")
    policy = replace(BOTH_NAMED, out_of_order=out_of_order)

    report = pair.repair(found, policy=policy, dry_run=dry_run, batch=1, looked_up=1)

    replayed = {REPLAYED: Repaired(done=1)}
    if out_of_order:
        assert report.refused == {}
        assert report.repaired == replayed | {PUBLISHED: Repaired(done=1, out_of_order=1)}
    else:
        assert report.refused == {(ABSENT, AMONG_OTHERS): 1}
        assert report.repaired == replayed


@pytest.mark.parametrize("dry_run", [True, False])
def test_copy_is_published_despite_replays_of_other_keys(pair: Pair, dry_run: bool):
    found = fail_after(pair, "k", "k1")

    report = pair.repair(found, policy=BOTH_NAMED, dry_run=dry_run)

    assert report.refused == {}
    assert report.repaired == {REPLAYED: Repaired(done=1), PUBLISHED: Repaired(done=1)}
