"""Tests of what a run reports about events of which no row shows whether they were lost."""

from __future__ import annotations

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.findings import TOPICS, Pair
from shieldtx.reconcile.verdicts import Verdict
from spark.results.collect import Tally, ambiguous_in


def test_ambiguous_events_are_reported_by_group_and_by_topic():
    kind = TxKind.COMMIT
    group = Pair(kind=kind, upstream="orders", downstream="stock", group="reserve")
    topic = Pair(kind=kind, upstream="orders", downstream=TOPICS, group="orders.placed")
    old, before = Verdict.TOO_OLD, Verdict.BEFORE_TOPIC

    of_group, of_topic = ambiguous_in(
        [
            Tally(pair=group, verdict=old, rows=3000, ambiguous=1999),
            Tally(pair=group, verdict=Verdict.MATCHED, rows=9),
            Tally(pair=topic, verdict=before, rows=5, ambiguous=2),
        ]
    )

    assert of_group.startswith(
        "1,999 events of orders were sent more than once, and group reserve of stock has no row"
    )
    assert of_topic.startswith("2 events of orders have no record on orders.placed (COMMIT), and")


def test_late_arrivals_are_reported_by_what_is_missing():
    pair = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")
    tally = Tally(
        pair=pair, verdict=Verdict.TOO_OLD, rows=7000, ambiguous=6000, unknown=2000, arrived=5000
    )

    absent, unknown, unfounded = ambiguous_in([tally])

    assert absent.startswith("1,000 events of orders were sent more than once")
    assert unknown.startswith(
        "2,000 events came to group reserve of stock (COMMIT) when they were older than the "
        "retention, and have no row in the outbox of orders"
    )
    assert unfounded.startswith(
        "3,000 events of orders that group reserve of stock has applied were taken back when"
    )


def test_rollbacks_settled_late_are_reported_by_what_is_missing():
    pair = Pair(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders", group="undo")
    tally = Tally(pair=pair, verdict=Verdict.TOO_OLD, rows=7, ambiguous=5, unknown=2, arrived=5)

    unknown, not_compensated = ambiguous_in([tally])

    assert unknown.startswith(
        "2 rollbacks of stock were older than the retention when group undo of orders received or "
        "settled them, and have no row in the outbox of stock"
    )
    assert not_compensated.startswith(
        "3 rollbacks of stock were older than the retention when group undo of orders settled them "
        "without a compensation"
    )


def test_records_without_rows_and_events_without_records_appear():
    pair = Pair(kind=TxKind.COMMIT, upstream="orders", downstream=TOPICS, group="orders.placed")
    absent, unknown = ambiguous_in(
        [
            Tally(pair=pair, verdict=Verdict.BEFORE_TOPIC, rows=5, ambiguous=2),
            Tally(pair=pair, verdict=Verdict.TOO_OLD, rows=5, ambiguous=4, unknown=4),
        ]
    )

    assert absent.startswith("2 events of orders have no record on orders.placed (COMMIT), and")
    assert unknown.startswith("4 records on orders.placed (COMMIT) show that their events were ")


def test_possible_second_effects_appear_with_missing_events():
    forth = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")
    back = Pair(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders", group="undo")
    done = {"rows": 9, "arrived": 2, "ambiguous": 2}

    again, absent, undone = ambiguous_in(
        [
            Tally(pair=forth, verdict=Verdict.MATCHED, **done),
            Tally(pair=forth, verdict=Verdict.REFUSED, **done),
            Tally(pair=forth, verdict=Verdict.TOO_OLD, rows=9, ambiguous=1),
            Tally(pair=back, verdict=Verdict.MATCHED, **done),
        ]
    )

    assert again.startswith("4 events of orders came to group reserve of stock so long after they ")
    assert "or the group had applied them before" in again
    assert absent.startswith("1 events of orders were sent more than once, and group reserve of ")
    assert undone.startswith(
        "2 rollbacks of stock came to group undo of orders so long after they "
    )
    assert "or the group had compensated them before" in undone


def test_run_without_ambiguous_events_reports_nothing():
    pair = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")
    assert list(ambiguous_in([Tally(pair=pair, verdict=Verdict.TOO_OLD, rows=7)])) == []
