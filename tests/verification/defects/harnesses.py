"""The harnesses, and how to run each of them against a defect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

import pytest

from tests.verification.faults import mutant_runs
from tests.verification.faults.world import World
from tests.verification.model.bounds import Mutant as ModelMutant
from tests.verification.model.explore import explore
from tests.verification.model.worlds import MUTANTS as MODEL_MUTANTS
from tests.verification.simulation.campaign import search
from tests.verification.simulation.mutants import MUTANTS as SIMULATED


class Harness(StrEnum):
    """A search for any violation of the promise, not for one defect."""

    FAULTS = "fault matrix"
    SIMULATION = "simulation"
    MODEL = "model"
    PROPERTY = "property test"


def find_in_model(name: str) -> bool:
    """Explore the smallest worlds in which this rule is left out."""
    [(bounds, invariant)] = [
        each for each in MODEL_MUTANTS.items() if each[0].mutant is ModelMutant[name]
    ]
    return explore(bounds).violation_of(invariant) is not None


def find_in_simulation(name: str) -> bool:
    """Play schedules until the invariant is violated that this mutant violates."""
    caught, _ = search(SIMULATED[name])
    return caught


def find_by_faults(name: str, world: World, seed: int) -> bool:
    """Run a mutant together with the fault that shows it."""
    return mutant_runs.run(name, world, seed=seed).caught


def find_by_properties(tests: Collection[str]) -> Mapping[str, bool]:
    """Run tests that each plant a defect and pass when it is found."""
    outcomes = _Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[outcomes])
    return {test: outcomes.passed(test) for test in tests}


class _Outcomes:
    """Records the outcomes of tests."""

    def __init__(self) -> None:
        self._failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a phase of a test has failed, or was skipped."""
        failed = self._failed.get(report.nodeid, False)
        self._failed[report.nodeid] = failed or report.outcome != "passed"

    def passed(self, test: str) -> bool:
        """Return whether a test has run and passed, with all its parameters."""
        found = [failed for node, failed in self._failed.items() if _is_of(node, test)]
        return bool(found) and not any(found)


def _is_of(node: str, test: str) -> bool:
    return node == test or node.startswith(f"{test}[")
