"""The protocol within small bounds: no interleaving breaks it, and every broken rule shows."""

from __future__ import annotations

import pytest

from tests.verification.model.actions_broker import without_read_records
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.explore import Violation, actions, explore
from tests.verification.model.state import State, initial
from tests.verification.model.worlds import BOTH, MUTANTS


def walk(bounds: Bounds, violation: Violation) -> State:
    """Take the steps that a violation names, one after the other."""
    state = initial(bounds)
    for name in violation.path:
        steps = [after for called, after in actions(state, bounds) if called == name]
        assert steps, f"there is no step {name!r}"
        state = without_read_records(steps[0])
    return state


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(events=1, relays=2, workers=2, faults=1),
        Bounds(events=2, relays=1, workers=1, faults=1, attempts=1, send_attempts=2),
        Bounds(events=1, relays=1, workers=1, downstream=BOTH, faults=0, attempts=1),
    ],
    ids=str,
)
def test_no_interleaving_breaks_an_invariant_and_every_one_drains(bounds: Bounds) -> None:
    assert explore(bounds).violations == ()


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


@pytest.mark.parametrize(
    ("bounds", "invariant"),
    MUTANTS.items(),
    ids=lambda x: x.mutant.name if isinstance(x, Bounds) else x,
)
def test_a_broken_rule_is_caught_by_its_invariant(bounds: Bounds, invariant: str) -> None:
    result = explore(bounds)
    caught = {violation.invariant: violation for violation in result.violations}
    assert invariant in caught
    # The level before was without fault: there is no shorter way. It can be gone step by step.
    assert result.depth - 1 <= len(caught[invariant].path) <= result.depth
    walk(bounds, caught[invariant])


def test_every_mutant_is_tried() -> None:
    assert {bounds.mutant for bounds in MUTANTS} == set(Mutant)
