"""What a repair leaves to a person although it could send it: real databases, relays, consumers."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from sqlalchemy import create_engine

from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair_decisions import OVERTAKEN, TAKEN_BACK, Policy
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.tables import tables
from tests.support.repair_scenarios import BOTH, Pair
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
    pair.refuse = True
    pair.write(2)
    pair.work()
    pair.refuse = False
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")
    if not compensated:  # as if the rollbacks were still on their way
        pair.orders.execute("DELETE FROM shield_inbox")

    report = pair.repair(pair.missing("mail"), policy=policy)
    pair.work()

    assert report.refused == {(MISSING, TAKEN_BACK): 2}
    assert pair.stock.effects("mail") == []
    assert pair.orders.outbox() == {"PROCESSED": 2}


def test_an_event_whose_rollback_was_discarded_is_delivered(pair: Pair):
    pair.refuse = True
    pair.write(1)
    pair.work()
    pair.refuse = False
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.stock.execute("UPDATE shield_outbox SET status = 'DISCARDED'")
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")

    report = pair.repair(pair.missing("mail"), policy=CAREFUL)
    pair.work()

    assert report.refused == {}
    assert len(pair.stock.effects("mail")) == 1


def test_an_event_is_not_delivered_behind_later_ones_of_its_key_unless_named(pair: Pair):
    pair.write(5)  # of keys 0, 1, 2, 0 and 1
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")

    for dry_run in (True, False):
        report = pair.repair(missing, policy=CAREFUL, dry_run=dry_run)
        assert report.refused == {(MISSING, OVERTAKEN): 2}
        assert report.repaired == {(MISSING, RepairAction.PUBLISH_AGAIN): Repaired(done=3)}
    pair.work()
    assert len(pair.stock.effects("stock")) == 3

    report = pair.repair(missing[:2], policy=NAMED)
    pair.work()

    assert report.refused == {}
    assert len(pair.stock.effects("stock")) == 5


@pytest.mark.parametrize(
    ("change", "overtaken"),
    [
        ("status = 'INIT', settled_at = NULL", False),
        ("status = 'FAILED'", False),
        ("status = 'DISCARDED'", False),
        ("status = 'PROCESSING', settled_at = NULL", True),
        ("attempts = 7", True),
        ("key = NULL", False),
        ("topic = 'orders.paid'", False),
        ("source = 'billing'", False),
        ("tx_kind = 'ROLLBACK'", False),
    ],
)
def test_later_are_those_of_its_line_that_were_sent(pair: Pair, change: str, overtaken: bool):
    pair.write(4)
    pair.work()
    first, *_, last = pair.sent()
    assert first["key"] == last["key"]
    pair.orders.execute(
        f"UPDATE shield_outbox SET {change} WHERE event_id = :event", event=last["event_id"]
    )

    found = overtaken_of(pair, [first["event_id"], last["event_id"]])

    assert found == ({first["event_id"]} if overtaken else set())


def overtaken_of(pair: Pair, ids: list[UUID]) -> set[UUID]:
    engine = create_engine(pair.orders.engine.url)
    try:
        return SqlRepairStore(engine, tables(), source="orders").overtaken(ids)
    finally:
        engine.dispose()
