"""Tests of the damage between two banks: one kind for each mismatch of the reconciliation."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pytest

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults import damage
from tests.verification.faults.reconciliation_runs import MISMATCHES
from tests.verification.faults.scenarios import reconciliation

# F34 itself compares the planted damage with all mismatches, some minutes later than this.
PLANTED = {
    Verdict[name]
    for module in (damage, reconciliation)
    for name in re.findall(r"Verdict\.([A-Z_]+)", Path(module.__file__).read_text())
}


@pytest.mark.parametrize("verdict", MISMATCHES)
def test_each_mismatch_has_a_damage_that_causes_it(verdict: Verdict) -> None:
    assert verdict in PLANTED


def test_follower_is_taken_with_the_event_ahead_of_it_alone() -> None:
    ada, bob, later = (UUID(int=n) for n in range(3))
    events = [ada, bob, later]
    keys = {ada: "ada", bob: "bob", later: "ada"}
    assert damage._take_follower(events, keys) == later
    assert events == [bob]


def test_without_a_follower_there_is_nothing_to_take() -> None:
    ada, bob = (UUID(int=n) for n in range(2))
    with pytest.raises(AssertionError, match="no key has two events"):
        damage._take_follower([ada, bob], {ada: "ada", bob: "bob"})
