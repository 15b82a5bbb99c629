"""Tests that findings are compared with what was planted, and errors of both kinds show."""

from __future__ import annotations

from uuid import UUID

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults.reconciliation_outcomes import Mismatch, Reconciled

MISSING = [Mismatch(Verdict.MISSING_DOWNSTREAM, "stock", UUID(int=n)) for n in range(4)]


def test_what_is_not_reported_lowers_recall_alone():
    counted = Reconciled()
    counted.note(set(MISSING), set(MISSING[:3]))
    assert (counted.precision, counted.recall) == (1.0, 0.75)


def test_what_is_reported_wrongly_lowers_precision_alone():
    counted = Reconciled()
    counted.note(set(MISSING[:3]), set(MISSING))
    assert (counted.precision, counted.recall) == (0.75, 1.0)


def test_another_verdict_or_group_is_wrong_on_both_counts():
    counted = Reconciled()
    one = MISSING[0]
    counted.note({one}, {one._replace(verdict=Verdict.STUCK)})
    counted.note({one}, {one._replace(group="mail")})
    assert (counted.precision, counted.recall) == (0.0, 0.0)
    assert (counted.falsely_reported, counted.missed) == (2, 2)


def test_runs_without_mismatches_are_exact():
    counted = Reconciled()
    counted.note(set(), set())
    assert (counted.runs, counted.precision, counted.recall) == (1, 1.0, 1.0)
