"""When the passes of a worker count as hanging, and when as failing for too long."""

from __future__ import annotations

from datetime import timedelta

from shieldtx.errors import BrokerUnavailable
from shieldtx.scheduling.health import NEVER, Health, Symptom

MINUTE = timedelta(minutes=1)


class Clock:
    """A clock that the test moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def made(limit: timedelta = MINUTE) -> tuple[Health, Clock]:
    clock = Clock()
    return Health(watchdog=MINUTE, failure_limit=limit, clock=clock), clock


def test_tick_that_fails_beyond_the_limit_is_named() -> None:
    health, clock = made()
    health.failed("poll", LookupError())
    clock.seconds = 60.0
    health.failed("poll", LookupError())
    assert health.failing() is None
    clock.seconds = 61.0
    health.failed("poll", LookupError())
    assert health.failing() == Symptom(job="poll", seconds=61.0)


def test_good_pass_restarts_the_limit() -> None:
    health, clock = made()
    health.failed("poll", LookupError())
    clock.seconds = 50.0
    health.succeeded("poll")
    health.failed("poll", LookupError())
    clock.seconds = 100.0
    health.failed("poll", LookupError())
    assert health.failing() is None
    clock.seconds = 111.0
    health.failed("poll", LookupError())
    assert health.failing() == Symptom(job="poll", seconds=61.0)


def test_good_pass_of_another_tick_does_not_count() -> None:
    health, clock = made()
    health.failed("poll", LookupError())
    clock.seconds = 61.0
    health.succeeded("renew")
    health.failed("poll", LookupError())
    assert health.failing() == Symptom(job="poll", seconds=61.0)


def test_unreachable_broker_does_not_count() -> None:
    health, clock = made()
    health.failed("poll", LookupError())
    health.failed("poll", BrokerUnavailable("Kafka is unreachable"))
    clock.seconds = 61.0
    assert health.failing() is None


def test_without_a_limit_no_tick_fails_for_too_long() -> None:
    health, clock = made(limit=NEVER)
    health.failed("poll", LookupError())
    clock.seconds = 1e9
    assert health.failing() is None


def test_pass_beyond_the_watchdog_hangs_until_it_ends() -> None:
    health, clock = made()
    with health.watching("poll"):
        clock.seconds = 60.0
        assert health.hung() is None
        clock.seconds = 61.0
        assert health.hung() == Symptom(job="poll", seconds=61.0)
    assert health.hung() is None


def test_pass_in_progress_after_a_failed_one_may_be_good() -> None:
    health, clock = made()
    health.failed("poll", LookupError())
    with health.watching("poll"):
        clock.seconds = 61.0
        assert health.failing() is None
    health.failed("poll", LookupError())
    assert health.failing() == Symptom(job="poll", seconds=61.0)
