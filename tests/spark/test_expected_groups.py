"""Which groups a run expects to have events, by the file and by what runs have seen."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes
from tests.spark.planting import TOPIC

DAY = 24 * 60
A_WEEK = timedelta(days=7)
CHANGED = {"event_type": "orders.changed", "topic": "orders.changed"}


def given_up(orders, stock, *, compensated_by=None):
    """Plant an event that a group gave up, and its rollback, which is lost or compensated."""
    event = orders.write(age=DAY, **CHANGED)
    of = {"group": "reserve", "source": "orders", "age": DAY, **CHANGED}
    stock.receive(event, InboxStatus.MAX_RECONSUMED, **of)
    of = {"kind": TxKind.ROLLBACK, "causation_id": event, "causation_source": "orders", "age": DAY}
    rollback = stock.write(**of, **CHANGED)
    if compensated_by is not None:
        done = {"group": compensated_by, "source": "stock", "compensated_id": event}
        orders.receive(rollback, **of, **done, **CHANGED)


@pytest.mark.parametrize("push_down", [True, False])
def test_a_lost_rollback_of_an_undeclared_type_is_missed_where_others_have_arrived(
    nights, orders, stock, push_down
):
    """The group compensates the type, and the file does not say so."""
    one = orders.write(age=DAY)
    stock.receive(one, group="reserve", source="orders", age=DAY)
    undo = ExpectedGroup(name="undo", kind=TxKind.ROLLBACK, topics=(TOPIC,))
    reserve = ExpectedGroup(name="reserve", topics=(TOPIC, "orders.changed"))
    services = (
        orders.database(retention=A_WEEK, groups=(undo,)),
        stock.database(retention=A_WEEK, groups=(reserve,)),
    )
    given_up(orders, stock, compensated_by="undo")
    first = nights.run(*services, push_down=push_down)
    assert (first.outcome, first.problems) == (RunOutcome.CLEAN, ())
    a_day_passes(orders)
    given_up(orders, stock)

    night = nights.run(*services, push_down=push_down)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1
