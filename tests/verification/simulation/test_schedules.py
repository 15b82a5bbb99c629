"""Tests of the services under random schedules of faults, which a seed determines completely."""

from __future__ import annotations

import pytest

from tests.verification.simulation import replay, run

SCHEDULES = 50
"""`make faults` plays 100,000."""


def test_no_schedule_violates_an_invariant() -> None:
    result = run(SCHEDULES, seed=1, processes=1)
    assert result.first_violation is None
    assert (result.schedules, result.violations) == (SCHEDULES, 0)


@pytest.mark.selftest
def test_a_seed_gives_the_same_trace_each_time() -> None:
    for seed in range(50):
        first: list[str] = []
        second: list[str] = []
        assert replay(seed, first) == replay(seed, second)
        assert first == second
        assert len(first) > 20


@pytest.mark.selftest
def test_seeds_give_different_traces() -> None:
    traces = []
    for seed in range(20):
        trace: list[str] = []
        replay(seed, trace)
        traces.append("\n".join(trace))
    assert len(set(traces)) == len(traces)
