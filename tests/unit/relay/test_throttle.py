"""The batch size of a relay: halved under pressure, and a step larger after each calm batch."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx.domain.log_throttle import LOG_EVERY
from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Backpressure
from shieldtx.ports.relay import Settlement
from shieldtx.relay.outcome import BatchOutcome
from shieldtx.relay.throttle import STEPS, AdaptiveBatchSize, CircuitBreaker, next_size
from tests.support.log_records import fields_of, logged
from tests.support.manual_clock import ManualClock

MOST = 1000
SIZES = st.integers(min_value=1, max_value=10_000)
THROTTLED = Backpressure(pause=2.0)
FULL = Backpressure(full=True)
CALM = Backpressure()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def batch_size(clock: ManualClock) -> AdaptiveBatchSize:
    return AdaptiveBatchSize(MOST, relay="one", clock=clock)


@given(SIZES, SIZES, SIZES, st.booleans())
def test_batch_is_never_empty_and_never_above_the_maximum(
    size: int, sent: int, most: int, is_pressed: bool
) -> None:
    size, sent = min(size, most), min(sent, size)
    assert 1 <= next_size(size, sent=sent, most=most, is_pressed=is_pressed) <= most


@given(SIZES, SIZES)
def test_pressure_halves_the_next_batch(size: int, sent: int) -> None:
    sent = min(sent, size)
    following = next_size(size, sent=sent, most=10_000, is_pressed=True)
    assert following == max(1, sent // 2)


@given(SIZES)
def test_full_speed_returns_within_a_bounded_number_of_batches(most: int) -> None:
    size, batches = 1, 0
    while size < most:
        following = next_size(size, sent=size, most=most, is_pressed=False)
        assert following > size
        size, batches = following, batches + 1
    assert batches <= 2 * STEPS


@given(st.lists(st.sampled_from([CALM, THROTTLED, FULL]), max_size=60), SIZES)
def test_full_speed_returns_after_any_sequence_of_pressures(
    pressures: list[Backpressure], most: int
) -> None:
    clock = ManualClock()
    batch_size = AdaptiveBatchSize(most, relay="one", clock=clock)
    for pressure in [*pressures, *[CALM] * 2 * STEPS]:
        clock.now += batch_size.pause
        assert 1 <= batch_size.size <= most
        batch_size.record(pressure, sent=batch_size.size)
    assert (batch_size.size, batch_size.pause, batch_size.is_throttled) == (most, 0.0, False)


def test_relay_pauses_as_long_as_the_broker_requests(
    batch_size: AdaptiveBatchSize, clock: ManualClock
) -> None:
    batch_size.record(THROTTLED, sent=MOST)
    assert (batch_size.size, batch_size.pause, batch_size.is_throttled) == (500, 2.0, True)
    clock.now += 1.5
    assert batch_size.pause == 0.5
    clock.now += 1
    assert batch_size.pause == 0.0
    assert batch_size.is_throttled


def test_full_buffers_make_smaller_batches_without_a_pause(batch_size: AdaptiveBatchSize) -> None:
    batch_size.record(FULL, sent=MOST)
    assert (batch_size.size, batch_size.pause, batch_size.is_throttled) == (500, 0.0, False)


def test_slowdown_is_logged_with_a_throttle_and_at_its_end(
    batch_size: AdaptiveBatchSize, clock: ManualClock, own_log: pytest.LogCaptureFixture
) -> None:
    own_log.set_level(logging.INFO)
    for _ in range(3):
        batch_size.record(THROTTLED, sent=batch_size.size)
    [slowed] = map(fields_of, own_log.records)
    assert (slowed["action"], slowed["reason"]) == ("relay_slowed", "throttled by the broker")
    assert slowed["delay_s"] == 2.0
    clock.now += LOG_EVERY
    batch_size.record(FULL, sent=batch_size.size)
    assert len(own_log.messages) == 2
    for _ in range(STEPS + 1):
        batch_size.record(CALM, sent=batch_size.size)
    full_speed = {"action": "relay_at_full_speed", "relay": "one", "count": 3}
    assert [fields_of(record) for record in own_log.records[2:]] == [full_speed]


def test_next_slowdown_is_logged_at_once(
    batch_size: AdaptiveBatchSize, own_log: pytest.LogCaptureFixture
) -> None:
    own_log.set_level(logging.WARNING)
    for _ in range(2):
        batch_size.record(THROTTLED, sent=batch_size.size)
        for _ in range(STEPS):
            batch_size.record(CALM, sent=batch_size.size)
    assert len(own_log.messages) == 2


OUTAGE = BatchOutcome(
    token=uuid4(),
    settlement=Settlement(),
    permanent_failures=[],
    outage_reasons=["no broker"],
    broker_responded=False,
)
LONGEST = timedelta(seconds=10)


def test_outage_doubles_the_pause_up_to_the_longest(clock: ManualClock) -> None:
    policy = RetryPolicy(first=timedelta(seconds=1), longest=LONGEST, jitter=0, max_attempts=6)
    breaker = CircuitBreaker(policy, relay="one", clock=clock)
    assert [pause_after(breaker, clock) for _ in range(8)] == [1, 2, 4, 8, 10, 10, 10, 10]


def test_outage_is_logged_once_a_minute_and_at_its_end(
    clock: ManualClock, own_log: pytest.LogCaptureFixture
) -> None:
    own_log.set_level(logging.INFO)
    breaker = CircuitBreaker(RetryPolicy(jitter=0), relay="one", clock=clock)
    for outage in (replace(OUTAGE, outage_reasons=["no broker"] * 9), OUTAGE, OUTAGE):
        breaker.record(outage)
        clock.now += LOG_EVERY / 2
    for _ in range(2):
        breaker.record(replace(OUTAGE, outage_reasons=[], broker_responded=True))
    of_relay = {"relay": "one", "group": None}
    assert logged(own_log.records, "broker_unavailable") == [
        {**of_relay, "count": 9, "duration_s": 0, "reason": "no broker"},
        {**of_relay, "count": None, "duration_s": 60, "reason": "no broker"},
    ]
    assert logged(own_log.records, "broker_available") == [{**of_relay, "duration_s": 90}]


def test_another_reason_of_an_outage_is_logged_at_once(
    clock: ManualClock, own_log: pytest.LogCaptureFixture
) -> None:
    breaker = CircuitBreaker(RetryPolicy(jitter=0), relay="one", clock=clock)
    for reason in ("timeout after 3.1 s", "timeout after 12 s", "NotEnoughReplicas"):
        breaker.record(replace(OUTAGE, outage_reasons=[reason]))
    reasons = [each["reason"] for each in logged(own_log.records, "broker_unavailable")]
    assert reasons == ["timeout after 3.1 s", "NotEnoughReplicas"]


def pause_after(breaker: CircuitBreaker, clock: ManualClock) -> int:
    """Return for how many seconds a breaker is open after one more outage."""
    assert breaker.record(OUTAGE) == "no broker"
    began = clock.now
    while breaker.is_open:
        clock.now += 1
    return int(clock.now - began)
