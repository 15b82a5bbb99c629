"""Tests that the table of defects names existing tests, and that the documentation has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verification.defects.harnesses import Harness
from tests.verification.defects.table import DEFECTS, as_markdown, names_of
from tests.verification.faults.mutants import MUTANTS as ON_SERVERS
from tests.verification.model.bounds import Mutant as OfTheModel
from tests.verification.simulation.mutants import MUTANTS as SIMULATED
from tests.verification.simulation.mutants import applied

ROOT = Path(__file__).parents[3]
KNOWN = {
    Harness.FAULTS: set(ON_SERVERS),
    Harness.SIMULATION: set(SIMULATED),
    Harness.MODEL: {mutant.name for mutant in OfTheModel},
}
TESTS = [
    *names_of(Harness.PROPERTY),
    *(defect.own_test for defect in DEFECTS if defect.own_test),
]


def test_each_defect_is_in_the_table_once() -> None:
    expected = [*(f"C{n}" for n in range(1, 25)), *(f"S{n}" for n in range(1, 13))]
    assert [defect.id for defect in DEFECTS] == expected


def test_each_defect_is_found_by_a_harness_or_its_own_test() -> None:
    assert all(bool(defect.caught) is not bool(defect.own_test) for defect in DEFECTS)


@pytest.mark.parametrize("harness", KNOWN)
def test_each_mutant_of_the_table_exists(harness: Harness) -> None:
    assert set(names_of(harness)) <= KNOWN[harness]


@pytest.mark.parametrize("name", SIMULATED)
def test_each_simulated_mutant_replaces_what_exists(name: str) -> None:
    mutant = SIMULATED[name]
    sound = getattr(mutant.of, mutant.method, None)
    with applied(name):
        assert getattr(mutant.of, mutant.method) is not sound
    assert getattr(mutant.of, mutant.method, None) is sound


@pytest.mark.parametrize("test", TESTS)
def test_each_test_of_the_table_exists(test: str) -> None:
    file, _, name = test.partition("::")
    function, _, _ = name.partition("[")
    assert f"def {function}(" in (ROOT / file).read_text()


def test_the_documentation_has_the_table() -> None:
    assert as_markdown() in (ROOT / "docs" / "explanation" / "proof.md").read_text()
