"""What a repair leaves to a person although it could send it: real databases, relays, consumers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shieldtx import Event
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair_decisions import OVERTAKEN, TAKEN_BACK, Policy
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_scenarios import BOTH, Pair, listed
from tests.support.service import Service

MISSING = Verdict.MISSING_DOWNSTREAM
CAREFUL = Policy(services=BOTH)
NAMED = Policy(services=BOTH, named=frozenset({MISSING}))


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


@pytest.mark.parametrize("policy", [CAREFUL, NAMED])
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
    for sent in pair.sent()[:number]:
        pair.stock.execute(
            "DELETE FROM shield_inbox WHERE consumer_group = :g AND event_id = :event",
            g=group,
            event=sent["event_id"],
        )
        pair.stock.execute(
            "DELETE FROM effects WHERE what = :g AND event_id = :event",
            g=group,
            event=str(sent["event_id"]),
        )


def write_one_by_one(pair: Pair, number: int) -> None:
    """Write events of keys 0, 1, 2, 0 and so on, each in a transaction of its own."""
    for n in range(number):
        with pair.orders.transaction() as session:
            placed = Event(type="orders.placed", key=f"k{n % 3}", payload={"n": n})
            pair.orders.app.outbox.add(session, placed)


def test_an_event_is_not_delivered_behind_later_ones_of_its_key_unless_named(pair: Pair):
    write_one_by_one(pair, 5)
    pair.work()
    lose_first(pair, 3, "stock")
    missing = pair.missing("stock")[:3]

    for dry_run in (True, False):
        report = pair.repair(missing, policy=CAREFUL, dry_run=dry_run)
        assert report.refused == {(MISSING, OVERTAKEN): 2}
        assert report.repaired == {(MISSING, RepairAction.PUBLISH_AGAIN): Repaired(done=1)}
    pair.work()
    assert len(pair.stock.effects("stock")) == 3

    report = pair.repair(missing[:2], policy=NAMED)
    pair.work()

    assert report.refused == {}
    assert len(pair.stock.effects("stock")) == 5


def test_events_of_a_key_that_are_missing_together_come_back_together_and_in_order(pair: Pair):
    write_one_by_one(pair, 9)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")

    report = pair.repair(list(reversed(missing)), policy=CAREFUL, batch=2)
    pair.work()

    assert report.refused == {}
    received = [(row["key"], row["event_id"]) for row in pair.received("stock")]
    written = [(row["key"], row["event_id"]) for row in pair.sent()]
    for key in ("k0", "k1", "k2"):
        assert [e for k, e in received if k == key] == [e for k, e in written if k == key]


def test_an_event_is_too_late_for_all_where_it_is_for_one_group(pair: Pair):
    write_one_by_one(pair, 4)
    pair.work()
    lose_first(pair, 1, "stock")
    pair.lose_inbox_rows("mail")

    report = pair.repair(pair.missing("stock")[:1] + pair.missing("mail"), policy=CAREFUL)

    assert report.refused == {(MISSING, OVERTAKEN): 2}
    assert report.repaired == {(MISSING, RepairAction.PUBLISH_AGAIN): Repaired(done=3)}


@pytest.mark.parametrize(
    ("change", "is_behind"),
    [
        ("status = 'INIT', settled_at = NULL", True),
        ("status = 'PROCESSING', settled_at = NULL", True),
        ("status = 'INIT', settled_at = NULL, waiting = true", False),
        ("status = 'FAILED'", False),
        ("status = 'INIT', settled_at = NULL, key = NULL", False),
        ("status = 'INIT', settled_at = NULL, topic = 'orders.paid'", False),
        ("status = 'INIT', settled_at = NULL, source = 'billing'", False),
    ],
)
def test_a_later_event_that_is_in_line_may_go_first(pair: Pair, change: str, is_behind: bool):
    write_one_by_one(pair, 4)
    pair.work()
    first, *_, last = pair.sent()
    assert first["key"] == last["key"]
    pair.stock.execute("DELETE FROM shield_inbox")
    pair.orders.execute(
        f"UPDATE shield_outbox SET {change} WHERE event_id = :event", event=last["event_id"]
    )

    report = pair.repair(pair.missing("stock")[:1], policy=CAREFUL)

    assert bool(report.refused) is is_behind
