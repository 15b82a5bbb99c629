"""Which PROCESSING events a repair releases: real databases, relays and consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shieldtx import Event
from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair.decisions import DISCARDED, TAKEN_BACK, TOO_OLD, Policy
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.repair.releases import not_released
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_scenarios import BOTH, Pair, before_statements, listed, rows
from tests.support.service import Service, drain

STUCK = Verdict.STUCK
RELEASED = (STUCK, RepairAction.RELEASE_EVENT)
RELEASED_ATTEMPT = (STUCK, RepairAction.RELEASE_ATTEMPT)
DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "reconciliation.md"
PLACEHOLDER = "01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de"
CAREFUL = Policy(services=BOTH)


def kept_for(days: float, *services: str) -> Policy:
    since = datetime.now(UTC) - timedelta(days=days)
    return replace(CAREFUL, young_since=dict.fromkeys(services, since))


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


def strand(service: Service, days: float, *, group: str = "stock") -> list[ListedRow]:
    """Leave events as a relay does that died after it had sent them, some days ago."""
    service.execute(
        "UPDATE shield_outbox SET status = 'PROCESSING', settled_at = NULL, attempts = 1, "
        "lease_token = gen_random_uuid(), lease_until = now() - :age, created_at = now() - :age, "
        "due_at = now() - :age",
        age=timedelta(days=days),
    )
    return stuck(service, group)


def stuck(service: Service, group: str = "stock") -> list[ListedRow]:
    return [
        replace(
            listed(STUCK, sent=sent, group=group),
            upstream_status=OutboxStatus.PROCESSING,
            downstream_status=None,
        )
        for sent in rows(service, "SELECT * FROM shield_outbox ORDER BY seq")
        if sent["status"] == "PROCESSING"
    ]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("forgetful", ["stock", "orders"])
def test_event_that_a_group_may_have_purged_is_not_released(
    pair: Pair, forgetful: str, dry_run: bool
):
    pair.write(2)
    pair.work()
    found = strand(pair.orders, 10)
    pair.stock.execute("DELETE FROM shield_inbox")
    before = pair.sent()

    report = pair.repair(found, policy=kept_for(7, forgetful), dry_run=dry_run)

    assert report.refused == {(STUCK, not_released(TOO_OLD)): 2}
    assert report.repaired == {}
    assert pair.sent() == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_that_all_groups_still_have_is_released(pair: Pair, dry_run: bool):
    pair.write(2)
    pair.work()
    found = strand(pair.orders, 6)

    report = pair.repair(found, policy=kept_for(7, "orders", "stock"), dry_run=dry_run)

    assert report.refused == {}
    assert report.repaired == {RELEASED: Repaired(done=2)}
    if not dry_run:
        pair.work()
        assert len(pair.stock.effects("stock")) == 2, "its row of the event refuses the copy"


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("compensated", [True, False])
def test_event_that_was_taken_back_is_not_released(pair: Pair, compensated: bool, dry_run: bool):
    pair.refuse_all(1)
    if not compensated:  # as if the rollbacks had not arrived yet
        pair.orders.execute("DELETE FROM shield_inbox")
    found = strand(pair.orders, 0.1)
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'stock'")

    report = pair.repair(found, policy=CAREFUL, dry_run=dry_run)

    assert report.refused == {(STUCK, not_released(TAKEN_BACK)): 1}
    assert report.repaired == {}
    assert pair.stock.effects("stock") == []
    assert "`shieldtx trace`" in not_released(TAKEN_BACK)


def test_event_that_an_operator_discarded_is_not_released(pair: Pair, monkeypatch: Any):
    pair.write(2)
    pair.work()
    found = strand(pair.orders, 0.1)
    store = "shieldtx.store.repair.SqlRepairStore.discarded"
    monkeypatch.setattr(store, lambda self, events, *, group=None: {events[0]})

    report = pair.repair(found, policy=CAREFUL)

    assert report.refused == {(STUCK, not_released(DISCARDED)): 1}
    assert report.repaired == {RELEASED: Repaired(done=1)}


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_whose_missing_rollback_is_raised_is_not_released(pair: Pair, dry_run: bool):
    """The rollback is raised first, in any order in which the run has listed the two."""
    pair.refuse_all(1)
    pair.stock.execute("DELETE FROM shield_outbox")
    pair.orders.execute("DELETE FROM shield_inbox")
    found = strand(pair.orders, 0.1)
    owed = [
        listed(Verdict.NEITHER_EFFECT_NOR_COMPENSATION, received=received)
        for received in pair.received("stock")
    ]

    report = pair.repair([*found, *owed], policy=CAREFUL, dry_run=dry_run)

    raised = (Verdict.NEITHER_EFFECT_NOR_COMPENSATION, RepairAction.RAISE_ROLLBACK)
    assert report.refused == {(STUCK, not_released(TAKEN_BACK)): 1}
    assert report.repaired == {raised: Repaired(done=1)}


def test_rollback_between_two_batches_prevents_the_release(pair: Pair):
    pair.refuse_all(2)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.stock.execute("UPDATE shield_outbox SET status = 'DISCARDED'")
    found = strand(pair.orders, 0.1)
    done: list[str] = []

    def take_back(statement: str) -> None:
        if statement.startswith("INSERT INTO shield_audit") and not done:
            done.append(statement)
            pair.stock.execute("UPDATE shield_outbox SET status = 'PROCESSED'")

    with before_statements(take_back):
        report = pair.repair(found, policy=CAREFUL, batch=1)

    assert report.refused == {(STUCK, not_released(TAKEN_BACK)): 1}
    assert report.repaired == {RELEASED: Repaired(done=1)}


@pytest.mark.parametrize(("days", "is_released"), [(6, True), (10, False)])
def test_rollback_is_released_while_all_groups_have_it(pair: Pair, days: float, is_released: bool):
    pair.refuse_all(1)
    found = strand(pair.stock, days, group="orders")

    report = pair.repair(found, policy=kept_for(7, "orders"))
    pair.work()

    # Each of the two groups has written a rollback.
    assert report.repaired == ({RELEASED: Repaired(done=2)} if is_released else {})
    assert list(report.refused) == ([] if is_released else [(STUCK, not_released(TOO_OLD))])
    assert len(pair.orders.effects("compensated")) == 1


@pytest.mark.parametrize(
    ("changes", "is_released"),
    [
        ("waiting = true", True),
        ("waiting = true, attempts = 2", True),
        ("waiting = true, unconfirmed = true", False),
        ("waiting = true, due_at = now() - interval '8 days'", False),
        ("attempts = attempts", False),
    ],
    ids=["delayed", "refused before", "taken over", "due long ago", "at once"],
)
def test_delayed_event_has_the_age_of_its_earliest_copy(
    pair: Pair, changes: str, is_released: bool
):
    pair.write(1)
    strand(pair.orders, 10)
    pair.orders.execute("UPDATE shield_outbox SET due_at = now() - interval '1 hour'")
    pair.orders.execute(f"UPDATE shield_outbox SET {changes}")

    report = pair.repair(stuck(pair.orders), policy=kept_for(7, "stock"))

    assert report.repaired == ({RELEASED: Repaired(done=1)} if is_released else {})
    assert list(report.refused) == ([] if is_released else [(STUCK, not_released(TOO_OLD))])


def test_an_event_that_is_gone_or_settled_has_changed(pair: Pair):
    pair.write(2)
    found = strand(pair.orders, 0.1)
    first = pair.sent()[0]["event_id"]
    pair.orders.execute("DELETE FROM shield_outbox WHERE event_id = :i", i=first)
    pair.orders.execute("UPDATE shield_outbox SET status = 'PROCESSED', settled_at = now()")

    assert pair.repair(found, policy=CAREFUL).repaired == {RELEASED: Repaired(changed=2)}


# --- how an operator settles events that are not released -----------------------------------------


def statement_of_the_docs() -> str:
    """The statement that the page gives an operator, with its placeholders."""
    section = DOCS.read_text().partition("### An event that is not released")[2]
    return section.partition("```sql\n")[2].partition("```")[0]


@pytest.mark.parametrize("status", ["PROCESSED", "FAILED"])
def test_statement_of_the_docs_settles_events_not_released(pair: Pair, status: str):
    pair.write(2)
    strand(pair.orders, 10)
    event_id = pair.sent()[0]["event_id"]
    statement = statement_of_the_docs()
    assert PLACEHOLDER in statement

    pair.orders.execute(
        statement.replace(PLACEHOLDER, str(event_id)).replace("'PROCESSED'", f"'{status}'")
    )

    assert pair.orders.outbox() == {status: 1, "PROCESSING": 1}
    if status == "FAILED":
        stores = pair.orders.app.stores
        letters = stores.dead_letters().find(event_id)
        (discard,) = stores.discards().discard(letters, who="ann", reason="compensated")
        assert discard.done
    pair.work()
    assert pair.stock.effects("stock") == ["k1"], "a relay has taken the other one over"


# --- what a group has received --------------------------------------------------------------------


def strand_attempts(pair: Pair, group: str) -> list[ListedRow]:
    pair.stock.execute(
        "UPDATE shield_inbox SET status = 'PROCESSING', settled_at = NULL, attempts = 1, "
        "lease_token = gen_random_uuid(), lease_until = now() - interval '10 days', "
        "received_at = now() - interval '10 days' WHERE consumer_group = :g",
        g=group,
    )
    pair.stock.execute("DELETE FROM effects WHERE what = :g", g=group)
    return [
        listed(STUCK, sent=sent, received=received, group=group)
        for sent, received in zip(pair.sent(), pair.received(group), strict=True)
    ]


def test_attempt_of_any_age_is_released_with_one_effect(pair: Pair):
    """No purge removes an open row, so its group has the event while the row is open."""
    pair.write(1)
    pair.work()
    found = strand_attempts(pair, "stock")

    report = pair.repair(found, policy=kept_for(7, "orders", "stock"))
    pair.work()

    assert report.repaired == {RELEASED_ATTEMPT: Repaired(done=1)}
    assert pair.stock.effects("stock") == ["k0"]


def test_attempt_of_an_event_taken_back_is_compensated_later(
    make_service: Callable[..., Service],
):
    pair = Pair(make_service)
    compensated: list[Any] = []

    def compensate(session: Any, event: Event) -> None:
        compensated.append(event.id)

    pair.stock.app.consumer("stock").compensates("orders.placed")(compensate)
    pair.write(1)
    drain(pair.orders.relay(), pair.stock.app.build_consumer("stock"))
    found = strand_attempts(pair, "stock")
    pair.refuse = True
    drain(pair.stock.app.build_consumer("mail"))
    pair.refuse = False
    # Workers see a running lease: the rollback arrives while the attempt is open.
    pair.stock.execute(
        "UPDATE shield_inbox SET due_at = now() + interval '1 day' WHERE consumer_group = 'stock'"
    )
    pair.work()
    assert not compensated

    report = pair.repair(found, policy=CAREFUL)
    pair.work()
    pair.stock.execute("UPDATE shield_inbox SET due_at = now() WHERE tx_kind = 'ROLLBACK'")
    pair.work()

    assert report.repaired == {RELEASED_ATTEMPT: Repaired(done=1)}
    assert pair.stock.effects("stock") == ["k0"]
    assert len(compensated) == 1
