"""A line about a subject is logged once in an interval."""

from __future__ import annotations

from shieldtx.domain.log_throttle import FailureThrottle, LogThrottle, Streak


def test_a_subject_is_admitted_once_in_an_interval() -> None:
    now = [1000.0]
    throttle = LogThrottle(every=60, clock=lambda: now[0])
    admitted = []
    for now[0] in (1000.0, 1001.0, 1059.9, 1060.0, 1061.0, 1120.0):
        admitted.append(throttle.admits("orders"))
    assert admitted == [True, False, False, True, False, True]


def test_subjects_do_not_throttle_each_other() -> None:
    throttle = LogThrottle(clock=lambda: 0.0)
    assert [throttle.admits(subject) for subject in ("a", "b", "a", None)] == [
        True,
        True,
        False,
        True,
    ]


def test_a_reset_admits_the_next_line() -> None:
    throttle = LogThrottle(clock=lambda: 0.0)
    assert throttle.admits()
    assert not throttle.admits()
    throttle.reset()
    throttle.reset("never admitted")
    assert throttle.admits()


class TestFailureThrottle:
    def test_first_failure_and_one_a_minute_are_admitted(self) -> None:
        now = [1000.0]
        failures = FailureThrottle(clock=lambda: now[0])
        admitted = []
        for now[0] in (1000.0, 1001.0, 1060.0):
            admitted.append(failures.failed("poll", "OSError"))
        assert admitted == [Streak(1, 0.0), None, Streak(3, 60.0)]

    def test_another_kind_of_failure_is_admitted_at_once(self) -> None:
        failures = FailureThrottle(clock=lambda: 0.0)
        assert failures.failed("poll", "OSError") == failures.failed("poll", "KeyError")

    def test_success_ends_the_streak_of_all_kinds(self) -> None:
        now = [1000.0]
        failures = FailureThrottle(clock=lambda: now[0])
        for kind in ("OSError", "KeyError"):
            failures.failed("poll", kind)
        now[0] += 5
        assert failures.ended("poll") == Streak(2, 5.0)
        assert failures.ended("poll") is None
        assert failures.failed("poll", "OSError") == Streak(1, 0.0)
