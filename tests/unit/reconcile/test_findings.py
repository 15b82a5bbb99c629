"""The outcome of a run by its findings, and the storage of findings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shieldtx.reconcile.findings import RunOutcome, from_json, to_json
from shieldtx.reconcile.incremental import Mode, is_good
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.reconcile.window import Window
from tests.support.sample_findings import BACK, NOON, PAIR, all_findings, bounds, findings


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        ([], RunOutcome.CLEAN),
        ([(PAIR, Verdict.MATCHED, 9)], RunOutcome.CLEAN),
        ([(PAIR, Verdict.MATCHED, 9), (PAIR, Verdict.IN_FLIGHT, 2)], RunOutcome.CLEAN),
        ([(PAIR, Verdict.DUPLICATE_RECORDS, 1)], RunOutcome.CLEAN),
        ([(PAIR, Verdict.PARKED, 1)], RunOutcome.MISMATCHES),
        ([(PAIR, Verdict.IN_FLIGHT, 2)], RunOutcome.NOT_JUDGED),
        ([(PAIR, Verdict.IN_FLIGHT, 2), (PAIR, Verdict.TOO_OLD, 2)], RunOutcome.NOT_JUDGED),
        ([(PAIR, Verdict.IN_FLIGHT, 2), (PAIR, Verdict.STUCK, 1)], RunOutcome.MISMATCHES),
        ([(PAIR, Verdict.MATCHED, 9), (BACK, Verdict.UNKNOWN_UPSTREAM, 1)], RunOutcome.MISMATCHES),
    ],
)
def test_outcome_follows_from_the_verdicts(counts, outcome):
    assert findings(*counts).outcome is outcome


def test_run_with_unjudged_parts_is_never_clean():
    assert findings((PAIR, Verdict.MATCHED, 9), obstacle="blind").outcome is RunOutcome.NOT_JUDGED
    assert findings((PAIR, Verdict.STUCK, 9), obstacle="blind").outcome is RunOutcome.MISMATCHES
    obstacles = ("no such topic",)
    assert (
        findings((PAIR, Verdict.MATCHED, 9), obstacles=obstacles).outcome is RunOutcome.NOT_JUDGED
    )
    assert findings(obstacles=obstacles).outcome is RunOutcome.NOT_JUDGED


HELD = Window(watermark=NOON, transaction_since=NOON)


@pytest.mark.parametrize(
    ("window", "verdicts", "outcome"),
    [
        (HELD, (Verdict.IN_FLIGHT,), RunOutcome.NOT_JUDGED),
        (HELD, (Verdict.IN_FLIGHT, Verdict.TOO_OLD), RunOutcome.NOT_JUDGED),
        (HELD, (Verdict.IN_FLIGHT, Verdict.MATCHED), RunOutcome.CLEAN),
        # Its last events were purged long ago.
        (HELD, (Verdict.TOO_OLD,), RunOutcome.CLEAN),
        # A night in which the only event of a pair is recent.
        (Window(watermark=NOON), (Verdict.IN_FLIGHT,), RunOutcome.CLEAN),
    ],
)
def test_pair_kept_in_flight_by_a_transaction_is_not_clean(window, verdicts, outcome):
    found = findings(
        (PAIR, Verdict.MATCHED, 9),
        *((BACK, verdict, 1) for verdict in verdicts),
        bounds=(bounds(PAIR), replace(bounds(BACK), window=window)),
    )
    assert found.outcome is outcome
    assert bool(found.problems) is (outcome is not RunOutcome.CLEAN)
    assert is_good(found, Mode.FULL)


def test_time_that_no_run_has_judged_is_a_problem_of_one_run():
    found = findings((PAIR, Verdict.MATCHED, 9), unjudged_spans=("no run",))
    assert (found.outcome, found.problems) == (RunOutcome.NOT_JUDGED, ("no run",))
    assert is_good(found, Mode.INCREMENTAL)
    hindered = findings(unjudged_spans=("no run",), obstacles=("no such topic",))
    assert not is_good(hindered, Mode.INCREMENTAL)


def test_services_left_out_do_not_change_the_outcome():
    assert findings((PAIR, Verdict.MATCHED, 9), left_out=("of crm",)).outcome is RunOutcome.CLEAN


def test_exit_statuses_are_the_documented_ones():
    assert [outcome.value for outcome in RunOutcome] == [0, 1, 2, 3]


@pytest.mark.parametrize("found", all_findings().values(), ids=all_findings())
def test_findings_are_read_from_their_file_unchanged(found):
    kept = from_json(to_json(found))
    assert to_json(kept) == to_json(found)
    assert kept.by_pair == found.by_pair


def test_scope_of_a_run_is_stored_too():
    selection = Selection(
        moved_since={"orders": NOON}, written_until=NOON, written_since=NOON - timedelta(days=1)
    )
    found = findings(selection=selection)
    assert from_json(to_json(found)) == found
