"""Tests that a mutant counts as caught by its own invariant alone."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tests.verification.faults import matrix, mutant_runs
from tests.verification.faults.matrix import Fault, Row
from tests.verification.faults.mutant_runs import EXACT, MUTANT_RUNS, TRIES, MutantRunResult
from tests.verification.faults.mutants import MUTANTS
from tests.verification.faults.reconciliation_outcomes import Reconciled
from tests.verification.faults.world import World


@pytest.fixture
def exact() -> MutantRunResult:
    """Return the result of a reconciliation with correct reports and repairs."""
    row = Row(
        fault=Fault(id="M0", name="none", run=lambda _banks: None),
        seed=1,
        drain_s=0.0,
        seconds=0.0,
        counts=None,
        reconciled=Reconciled(runs=1, planted=2, reported=2, right=2, repaired=2),
    )
    return MutantRunResult(mutant=MUTANTS["M19"], invariant="falsely_reported", row=row)


def test_each_mutant_has_a_run() -> None:
    assert list(MUTANT_RUNS) == list(MUTANTS)


@pytest.mark.parametrize("invariant", sorted(EXACT))
def test_an_exact_reconciliation_catches_no_mutant(exact: MutantRunResult, invariant: str) -> None:
    assert not replace(exact, invariant=invariant).caught


@pytest.mark.parametrize(
    ("invariant", "counted"),
    [
        ("falsely_reported", Reconciled(planted=2, reported=3, right=2)),
        ("missed", Reconciled(planted=2, reported=1, right=1)),
        ("repaired_again", Reconciled(repaired=2, repaired_again=1)),
    ],
)
def test_each_error_of_a_reconciliation_catches_its_mutant(
    exact: MutantRunResult, invariant: str, counted: Reconciled
) -> None:
    made = replace(exact, invariant=invariant, row=replace(exact.row, reconciled=counted))
    assert [replace(made, invariant=name).caught for name in sorted(EXACT)] == [
        name == invariant for name in sorted(EXACT)
    ]


def test_without_a_reconciliation_no_mutant_is_caught(exact: MutantRunResult) -> None:
    assert not replace(exact, row=replace(exact.row, reconciled=None)).caught


@pytest.mark.parametrize(("caught_at", "tries"), [(1, 1), (2, 2), (TRIES + 1, TRIES)])
def test_a_mutant_is_run_until_it_is_caught_or_out_of_tries(
    exact: MutantRunResult, monkeypatch: pytest.MonkeyPatch, caught_at: int, tries: int
) -> None:
    seeds: list[int] = []

    def play(fault: Fault, world: World, *, seed: int, **given: object) -> Row:
        seeds.append(seed)
        reported = int(len(seeds) == caught_at)
        return replace(exact.row, fault=fault, reconciled=Reconciled(runs=1, reported=reported))

    monkeypatch.setattr(matrix, "run", play)

    result = mutant_runs.run("M19", cast("World", None), seed=7)

    assert seeds == [7 + n for n in range(tries)]
    assert (result.caught, result.tries) == (caught_at <= TRIES, tries)
