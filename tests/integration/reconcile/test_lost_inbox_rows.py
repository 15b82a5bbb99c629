"""Events that a service may have handled without an inbox row: no repair sends them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair.decisions import Policy
from shieldtx.reconcile.repair.lost_rows import LostRows
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_scenarios import BOTH, Pair, listed, write_one_by_one
from tests.support.service import Service

WAYS = {
    RepairAction.HAND_OVER: (Verdict.MISSING_DOWNSTREAM, OutboxStatus.PROCESSED),
    RepairAction.PUBLISH_AGAIN: (Verdict.ABSENT_FROM_TOPIC, OutboxStatus.PROCESSED),
    RepairAction.RELEASE_EVENT: (Verdict.STUCK, OutboxStatus.PROCESSING),
    RepairAction.REPLAY_EVENT: (Verdict.PARKED, OutboxStatus.FAILED),
}


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


def policy(**whole_since: datetime) -> Policy:
    lost = LostRows(whole_since=whole_since)
    return Policy(services=BOTH, named=frozenset(Verdict), out_of_order=True, lost_rows=lost)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_event_possibly_older_than_a_complete_inbox_is_not_sent(
    pair: Pair, way: RepairAction, dry_run: bool
):
    write_one_by_one(pair, 3)
    pair.work()
    pair.stock.execute("DELETE FROM shield_inbox")
    verdict, status = WAYS[way]
    # The last copy of each was just sent; the first copy of k1 may be nine days old.
    pair.orders.execute(
        "UPDATE shield_outbox SET unconfirmed = true, status = CAST(:status AS text), "
        "settled_at = CASE WHEN CAST(:status AS text) <> 'PROCESSING' THEN now() END, "
        "created_at = now() - make_interval(days => CASE key WHEN 'k1' THEN 9 ELSE 1 END)",
        status=status.value,
    )
    week = datetime.now(UTC) - timedelta(days=7)
    found = [listed(verdict, sent=sent) for sent in pair.sent()]

    report = pair.repair(found, policy=policy(stock=week), dry_run=dry_run)

    ((_, reason), number), *others = report.refused.items()
    assert (number, others) == (1, [])
    assert "`--restored stock`" in reason
    (done,) = report.repaired.values()
    assert done.done == 2


def test_event_is_handed_over_to_a_service_with_a_complete_inbox(pair: Pair):
    pair.write(2)
    pair.work()
    pair.lose_inbox_rows("stock")
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    report = pair.repair(pair.missing("stock"), policy=policy(orders=tomorrow))

    assert report.refused == {}
    handed_over = (Verdict.MISSING_DOWNSTREAM, RepairAction.HAND_OVER)
    assert report.repaired == {handed_over: Repaired(done=2)}
