"""A line about a subject is logged once in an interval."""

from __future__ import annotations

from shieldtx.domain.log_throttle import LogThrottle


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
