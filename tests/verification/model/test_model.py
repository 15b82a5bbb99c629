"""Tests of the protocol in small bounds; `make faults` explores large ones and breaks each rule."""

from __future__ import annotations

import pytest

from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.explore import explore, walk
from tests.verification.model.worlds import MUTANTS

SMALL = (
    Mutant.SENDS_BEFORE_COMMIT,
    Mutant.INSERTS_DUPLICATES,
    Mutant.COUNTS_ATTEMPT_AFTERWARDS,
    Mutant.COMPENSATES_UNFINISHED,
    Mutant.PURGES_UNDER_A_ROLLBACK,
)
"""Rules whose breach shows within a second."""


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (Bounds(events=0, faults=0), (1, 0, 0)),
        (Bounds(events=1, relays=1, workers=1, faults=0), (50, 85, 19)),
        (Bounds(events=1, relays=1, workers=1, faults=1), (1261, 3201, 25)),
        (Bounds(events=2, relays=2, workers=2, faults=0), (1598, 5253, 34)),
    ],
    ids=str,
)
def test_the_number_of_states_is_what_it_was(bounds: Bounds, found: tuple[int, int, int]) -> None:
    result = explore(bounds)
    assert (result.states, result.transitions, result.depth) == found
    assert result.violations == ()


@pytest.mark.parametrize("mutant", SMALL, ids=lambda mutant: mutant.name)
def test_a_broken_rule_breaks_its_invariant_by_a_shortest_path(mutant: Mutant) -> None:
    [(bounds, invariant)] = [entry for entry in MUTANTS.items() if entry[0].mutant is mutant]
    result = explore(bounds)
    violation = result.violation_of(invariant)
    assert violation is not None
    assert result.is_shortest(violation)
    walk(bounds, violation)


def test_every_mutant_is_tried() -> None:
    assert {bounds.mutant for bounds in MUTANTS} == set(Mutant)
