"""A proof that never fails proves nothing: each deliberate defect shows, and in the right place."""

from __future__ import annotations

import pytest

from tests.verification.simulation import MUTANTS, replay, run
from tests.verification.simulation.mutants import MOST_SCHEDULES, RARE


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in RARE])
def test_a_defect_shows_through_its_invariant(name: str) -> None:
    mutant = MUTANTS[name]
    result = run(MOST_SCHEDULES, seed=mutant.seed, processes=1, mutant=name, until=mutant.invariant)
    assert result.invariants.get(mutant.invariant), f"{result} does not name {mutant.invariant}"


def test_what_is_rare_is_a_mutant() -> None:
    assert set(RARE) < set(MUTANTS)


def test_a_finding_replays_with_its_defect_and_not_without() -> None:
    result = run(1_000, seed=1, processes=1, mutant="no-dedupe", until="I3")
    assert result.first_violation is not None
    seed = result.first_violation.seed
    assert tuple(replay(seed, mutant="no-dedupe")) == result.first_violation.violations
    assert not replay(seed)
