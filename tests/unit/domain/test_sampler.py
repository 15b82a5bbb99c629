"""Samples are taken at an interval, and take at most their share of the time."""

from __future__ import annotations

import pytest

from shieldtx.domain.sampler import SHARE, Sampler
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def sampler(clock: ManualClock) -> Sampler:
    return Sampler(every=1.0, clock=clock)


def test_first_sample_is_due_at_once(sampler: Sampler) -> None:
    assert sampler.is_due()


def test_quick_sample_is_due_again_after_the_interval(sampler: Sampler, clock: ManualClock) -> None:
    sampler.record(took=0.01)
    clock.now = 0.99
    assert not sampler.is_due()
    clock.now = 1.0
    assert sampler.is_due()


def test_slow_sample_takes_no_more_than_its_share(sampler: Sampler, clock: ManualClock) -> None:
    sampler.record(took=2.0)
    clock.now = 2.0 * SHARE - 0.1
    assert not sampler.is_due()
    assert not sampler.is_due(every=0.0)
    clock.now = 2.0 * SHARE
    assert sampler.is_due()


def test_interval_can_be_overridden(sampler: Sampler) -> None:
    sampler.record(took=0.0)
    assert sampler.is_due(every=0.0)
    assert not sampler.is_due()


def test_sample_in_progress_is_not_due(sampler: Sampler, clock: ManualClock) -> None:
    sampler.record(took=2.0)
    clock.now = 100.0
    sampler.postpone()
    assert not sampler.is_due()
    clock.now = 101.0
    assert sampler.is_due()
