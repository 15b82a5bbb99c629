"""How many events a savepoint protects: many where failures are rare, one where all fail."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from shieldtx.consumer.failure_rates import FailureRates
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Attempt

SECONDS = 0.000_3
"""The duration of a call."""


def attempts(*types: str) -> list[Attempt]:
    return [
        Attempt(
            envelope=Envelope(
                id=uuid4(),
                type=name,
                source="orders",
                topic=name,
                payload="{}",
                time=datetime.now(UTC),
            ),
            group="stock",
            number=1,
            token=uuid4(),
        )
        for name in types
    ]


def rates_after(*, successes: int, failures: int = 1, seconds: float = SECONDS) -> FailureRates:
    rates = FailureRates()
    rates.succeeded(attempts("good"), took=seconds)
    for failed in attempts(*["bad"] * failures):
        rates.failed(failed)
    for succeeded in attempts(*["bad"] * successes):
        rates.succeeded([succeeded], took=seconds)
    return rates


def test_type_that_never_failed_gets_no_savepoint() -> None:
    rates = FailureRates()
    rates.succeeded(attempts("good"), took=SECONDS)
    assert rates.next_part(attempts(*["good"] * 5), 2) == (5, False)


def test_part_without_savepoint_ends_before_a_type_that_fails() -> None:
    part = rates_after(successes=0).next_part(attempts("good", "good", "bad"), 0)
    assert part == (2, False)


def test_savepoint_protects_one_event_where_all_fail() -> None:
    rates = rates_after(successes=0, failures=500)
    assert rates.next_part(attempts(*["bad"] * 9), 3) == (4, True)


def test_only_a_type_that_fails_more_often_than_not_mostly_fails() -> None:
    [bad, good] = attempts("bad", "good")
    assert rates_after(successes=0, failures=80).mostly_fails(bad)
    assert not rates_after(successes=0, failures=60).mostly_fails(bad)
    assert not rates_after(successes=0, failures=80).mostly_fails(good)


def test_savepoint_protects_more_events_the_rarer_failures_are() -> None:
    batch = attempts(*["bad"] * 2_000)
    sizes = [
        rates_after(successes=n, failures=50).next_part(batch, 0)[0] for n in (0, 100, 300, 500)
    ]
    assert sizes == sorted(set(sizes))
    assert sizes[0] > 1


def test_savepoint_protects_one_event_of_a_slow_handler() -> None:
    rates = rates_after(successes=0, failures=5, seconds=1.0)
    assert rates.next_part(attempts(*["bad"] * 9), 0) == (1, True)


def test_savepoint_protects_one_event_before_a_call_was_measured() -> None:
    rates, batch = FailureRates(), attempts(*["bad"] * 9)
    rates.failed(batch[0])
    assert rates.next_part(batch, 0) == (1, True)


def test_latest_durations_of_calls_count_most() -> None:
    rates, batch = rates_after(successes=0), attempts(*["bad"] * 100)
    assert rates.next_part(batch, 0)[0] > 10
    for _ in range(50):
        rates.succeeded(attempts("good", "good"), took=1.0)
    assert rates.next_part(batch, 0) == (1, True)


def test_duration_of_a_list_call_is_divided_by_its_events() -> None:
    together, alone = FailureRates(), FailureRates()
    together.succeeded(attempts(*["good"] * 10), took=10 * SECONDS)
    alone.succeeded(attempts("good"), took=SECONDS)
    batch = attempts(*["bad"] * 100)
    for rates in (together, alone):
        rates.failed(batch[0])
    assert together.next_part(batch, 0) == alone.next_part(batch, 0)


def test_savepoint_ends_with_an_event_of_a_type_that_fails() -> None:
    batch = attempts("bad", "good", "bad", "good", "good")
    assert rates_after(successes=0).next_part(batch, 0) == (3, True)


def test_a_failure_is_forgotten_after_many_successes() -> None:
    batch = attempts("bad")
    assert rates_after(successes=600).next_part(batch, 0) == (1, True)
    assert rates_after(successes=800).next_part(batch, 0) == (1, False)


def test_slow_savepoints_protect_more_events() -> None:
    batch = attempts(*["bad"] * 500)
    slow, fast = rates_after(successes=0, failures=50), rates_after(successes=0, failures=50)
    for _ in range(50):
        slow.savepoints_took(0.04, number=2)
        fast.savepoints_took(0.000_01, number=1)
    assert slow.next_part(batch, 0)[0] > 5
    assert fast.next_part(batch, 0) == (1, True)
