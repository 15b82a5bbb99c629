"""What a repair leaves to a person although it could send it: real databases, relays, consumers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shieldtx import Event
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair_decisions import OVERTAKEN, TAKEN_BACK, Policy
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_scenarios import BOTH, Pair, listed, lose, rows
from tests.support.service import Service

MISSING = Verdict.MISSING_DOWNSTREAM
CAREFUL = Policy(services=BOTH)
NAMED = Policy(services=BOTH, named=frozenset({MISSING}))
OUT_OF_ORDER = Policy(services=BOTH, out_of_order=True)
HANDED_OVER = (MISSING, RepairAction.HAND_OVER)


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


@pytest.mark.parametrize("policy", [CAREFUL, NAMED, OUT_OF_ORDER])
@pytest.mark.parametrize("compensated", [True, False])
def test_an_event_that_was_taken_back_is_not_delivered(
    pair: Pair, policy: Policy, compensated: bool
):
    pair.refuse_all(2)
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")
    if not compensated:  # as if the rollbacks were still on their way
        pair.orders.execute("DELETE FROM shield_inbox")

    report = pair.repair(pair.missing("mail"), policy=policy)
    pair.work()

    assert report.refused == {(MISSING, TAKEN_BACK): 2}
    assert pair.stock.effects("mail") == []
    assert pair.orders.outbox() == {"PROCESSED": 2}


@pytest.mark.parametrize("status", ["INIT", "DEAD"])
def test_a_rollback_that_is_still_to_be_done_takes_back(pair: Pair, status: str):
    """As that of a service which is in no configuration."""
    pair.refuse_all(1)
    settled = "now()" if status == "DEAD" else "NULL"
    pair.orders.execute(
        f"UPDATE shield_inbox SET status = '{status}', settled_at = {settled}, "
        "compensated_id = NULL"
    )
    pair.stock.execute("DELETE FROM shield_outbox")
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")

    report = pair.repair(pair.missing("mail"), policy=CAREFUL)

    assert report.refused == {(MISSING, TAKEN_BACK): 1}


def test_a_failed_event_that_was_taken_back_is_not_replayed(pair: Pair):
    pair.refuse_all(1)
    pair.orders.execute("UPDATE shield_outbox SET status = 'FAILED', last_error = 'unclear'")
    (failed,) = pair.sent()
    named = Policy(services=BOTH, named=frozenset({Verdict.PARKED}))

    report = pair.repair([listed(Verdict.PARKED, sent=failed, group="mail")], policy=named)

    assert report.refused == {(Verdict.PARKED, TAKEN_BACK): 1}
    assert pair.orders.outbox() == {"FAILED": 1}


def test_an_event_whose_rollback_was_discarded_is_delivered(pair: Pair):
    pair.refuse_all(1)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.stock.execute("UPDATE shield_outbox SET status = 'DISCARDED'")
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")

    report = pair.repair(pair.missing("mail"), policy=CAREFUL)
    pair.work()

    assert report.refused == {}
    assert len(pair.stock.effects("mail")) == 1


def lose_first(pair: Pair, number: int, group: str) -> None:
    """Lose the inbox rows of the events that were written first."""
    lose(pair, group, *(sent["event_id"] for sent in pair.sent()[:number]))


def write_one_by_one(pair: Pair, number: int) -> None:
    """Write events of keys 0, 1, 2, 0 and so on, each in a transaction of its own."""
    for n in range(number):
        with pair.orders.transaction() as session:
            placed = Event(type="orders.placed", key=f"k{n % 3}", payload={"n": n})
            pair.orders.app.outbox.add(session, placed)


def write_at_once(pair: Pair, number: int) -> None:
    """Write events of keys 0, 1, 2, 0 and so on, which all have the same time."""
    pair.write(number)
    pair.orders.execute("UPDATE shield_outbox SET created_at = now()")


def test_an_event_is_not_delivered_behind_later_ones_of_its_key_unless_allowed(pair: Pair):
    write_one_by_one(pair, 5)
    pair.work()
    lose_first(pair, 3, "stock")
    missing = pair.missing("stock")[:3]

    for dry_run in (True, False):
        report = pair.repair(missing, policy=NAMED, dry_run=dry_run)
        assert report.refused == {(MISSING, OVERTAKEN): 2}
        assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    pair.work()
    assert len(pair.stock.effects("stock")) == 3

    for dry_run in (True, False):
        report = pair.repair(missing, policy=OUT_OF_ORDER, dry_run=dry_run)
        assert report.refused == {}
        assert report.repaired == {HANDED_OVER: Repaired(done=2, needless=1, out_of_order=2)}
    pair.work()
    assert len(pair.stock.effects("stock")) == 5


def in_order(pair: Pair, group: str = "stock") -> bool:
    """Whether an inbox has all events, and those of each key in the order of the outbox."""
    received = [(row["key"], row["event_id"]) for row in pair.received(group)]
    written = [(row["key"], row["event_id"]) for row in pair.sent()]
    assert sorted(received) == sorted(written)
    return all(
        [event for k, event in received if k == key] == [event for k, event in written if k == key]
        for key in {key for key, _ in written}
    )


@pytest.mark.parametrize("write", [write_one_by_one, write_at_once])
def test_missing_events_of_a_key_come_in_order_however_they_are_listed(
    pair: Pair, write: Callable[[Pair, int], None]
):
    """The second part of the rows that are looked up holds events before those of the first."""
    write(pair, 12)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")

    report = pair.repair(missing[::-1], policy=CAREFUL, batch=2, looked_up=3)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=12)}
    assert in_order(pair)


@pytest.mark.parametrize("write", [write_one_by_one, write_at_once])
def test_the_rest_of_a_key_is_handed_over_after_an_interruption(
    pair: Pair, write: Callable[[Pair, int], None]
):
    write(pair, 12)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    pair.repair(missing[:5], policy=CAREFUL)

    report = pair.repair(missing, policy=CAREFUL, batch=2, looked_up=3)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=7, needless=5)}
    assert in_order(pair)


def test_of_one_time_the_outbox_knows_which_event_is_later(pair: Pair):
    write_at_once(pair, 6)
    pair.work()
    written = [row["event_id"] for row in pair.sent()]
    lose(pair, "stock", written[0], written[4], written[5])
    # The other event of k2 may have been later: nothing knows any more.
    pair.orders.execute("DELETE FROM shield_outbox WHERE event_id = :event", event=written[2])
    lost = {written[0], written[4], written[5]}

    report = pair.repair(
        [row for row in pair.missing("stock") if row.event_id in lost], policy=CAREFUL
    )

    assert report.refused == {(MISSING, OVERTAKEN): 2}
    assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    assert pair.received("stock")[-1]["event_id"] == written[4]


def test_an_event_that_is_too_late_for_one_group_is_handed_over_to_another(pair: Pair):
    write_one_by_one(pair, 4)
    pair.work()
    lose_first(pair, 1, "stock")
    pair.lose_inbox_rows("mail")

    report = pair.repair(pair.missing("stock")[:1] + pair.missing("mail"), policy=CAREFUL)

    assert report.refused == {(MISSING, OVERTAKEN): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=4)}
    assert in_order(pair, "mail")


@pytest.mark.parametrize(
    "change",
    [
        "key = NULL",
        "key = 'another'",
        "topic = 'orders.paid'",
        "source = 'billing'",
        "consumer_group = 'another'",
        "tx_kind = 'ROLLBACK'",
    ],
)
def test_what_is_of_another_key_topic_source_or_group_overtakes_nothing(pair: Pair, change: str):
    write_one_by_one(pair, 4)
    pair.work()
    first, *_, last = pair.sent()
    assert first["key"] == last["key"]
    pair.stock.execute(
        "DELETE FROM shield_inbox WHERE consumer_group = 'mail' OR event_id <> :last",
        last=last["event_id"],
    )
    missing = pair.missing("stock")[:1]
    tried = pair.repair(missing, policy=CAREFUL, dry_run=True)
    assert tried.refused == {(MISSING, OVERTAKEN): 1}

    pair.stock.execute(f"UPDATE shield_inbox SET {change}")

    assert pair.repair(missing, policy=CAREFUL).repaired == {HANDED_OVER: Repaired(done=1)}


def test_an_event_is_handed_over_before_later_ones_that_are_in_line(pair: Pair):
    write_one_by_one(pair, 4)
    pair.work()
    last = pair.sent()[-1]["event_id"]
    pair.stock.execute("DELETE FROM shield_inbox")
    pair.stock.execute("DELETE FROM effects")
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'INIT', settled_at = NULL WHERE event_id = :event",
        event=last,
    )

    report = pair.repair(pair.missing("stock")[:3], policy=CAREFUL)
    pair.work()

    assert report.repaired == {HANDED_OVER: Repaired(done=3)}
    assert in_order(pair)
    handled = [e for (e,) in pair.stock.rows("SELECT event_id FROM effects WHERE what = 'stock'")]
    assert handled.index(str(last)) > handled.index(str(pair.sent()[0]["event_id"]))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_rollback_is_published_again_whatever_the_group_has_received(pair: Pair, dry_run: bool):
    """Rollbacks are handled by what they take back, in no order with the events of their key."""
    pair.refuse_all(4)
    first = rows(pair.stock, "SELECT * FROM shield_outbox ORDER BY seq LIMIT 1")[0]
    pair.orders.execute("DELETE FROM shield_inbox WHERE event_id = :event", event=first["event_id"])
    pair.orders.execute("UPDATE shield_inbox SET compensated_id = NULL, status = 'DISCARDED'")

    report = pair.repair(
        [listed(MISSING, sent=first, group="orders")], policy=CAREFUL, dry_run=dry_run
    )

    assert report.repaired == {(MISSING, RepairAction.PUBLISH_AGAIN): Repaired(done=1)}
