"""The protocol within small bounds; `make faults` explores the large ones and breaks each rule."""

from __future__ import annotations

import pytest

from tests.verification.model.actions_broker import without_read_records
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.explore import Violation, actions, explore
from tests.verification.model.state import State, initial
from tests.verification.model.worlds import MUTANTS

SMALL = (Mutant.SENDS_BEFORE_COMMIT, Mutant.INSERTS_DUPLICATES, Mutant.COUNTS_ATTEMPT_AFTERWARDS)
"""Rules whose breach shows within a second."""


def walk(bounds: Bounds, violation: Violation) -> State:
    """Take the steps that a violation names, one after the other."""
    state = initial(bounds)
    for name in violation.path:
        steps = [after for called, after in actions(state, bounds) if called == name]
        assert steps, f"there is no step {name!r}"
        state = without_read_records(steps[0])
    return state


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (Bounds(events=0, faults=0), (1, 0, 0)),
        (Bounds(events=1, relays=1, workers=1, faults=0), (50, 85, 19)),
        (Bounds(events=2, relays=2, workers=2, faults=0), (1598, 5253, 34)),
    ],
    ids=str,
)
def test_the_number_of_states_is_what_it_was(bounds: Bounds, found: tuple[int, int, int]) -> None:
    result = explore(bounds)
    assert (result.states, result.transitions, result.depth) == found
    assert result.violations == ()


@pytest.mark.parametrize("mutant", SMALL, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_caught_by_its_invariant_in_as_few_steps_as_there_are(
    mutant: Mutant,
) -> None:
    [(bounds, invariant)] = [entry for entry in MUTANTS.items() if entry[0].mutant is mutant]
    result = explore(bounds)
    caught = {violation.invariant: violation for violation in result.violations}
    assert invariant in caught
    # The level before was without fault: there is no shorter way. It can be gone step by step.
    assert result.depth - 1 <= len(caught[invariant].path) <= result.depth
    walk(bounds, caught[invariant])


def test_every_mutant_is_tried() -> None:
    assert {bounds.mutant for bounds in MUTANTS} == set(Mutant)
