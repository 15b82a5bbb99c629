"""Tests that a schedule shows a deliberate defect again; `make faults` tries every defect."""

from __future__ import annotations

import pytest

from tests.verification.simulation import replay, run


@pytest.mark.selftest
def test_a_finding_replays_with_its_defect_and_not_without() -> None:
    result = run(1_000, seed=1, processes=1, mutant="no-dedupe", until="I3")
    assert result.first_violation is not None
    seed = result.first_violation.seed
    assert tuple(replay(seed, mutant="no-dedupe")) == result.first_violation.violations
    assert not replay(seed)
