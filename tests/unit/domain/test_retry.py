"""The delays of any retry policy."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx import LEVELS, Refused, RetryPolicy
from shieldtx.domain.retry import LONGEST_WAIT
from shieldtx.errors import ConfigurationError

MILLISECOND = timedelta(milliseconds=1)
ATTEMPTS = st.integers(min_value=1, max_value=10**6)
JITTERS = st.floats(min_value=0, max_value=1)


@st.composite
def policies(draw: st.DrawFn, jitter: st.SearchStrategy[float] = JITTERS) -> RetryPolicy:
    first = draw(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30)))
    more = draw(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3000)))
    return RetryPolicy(
        max_attempts=10**9,
        first=first,
        longest=first + more,
        factor=draw(st.floats(min_value=1, max_value=1e300)),
        jitter=draw(jitter),
    )


@given(policies(), ATTEMPTS)
def test_delay_is_never_negative_or_above_the_longest(policy: RetryPolicy, attempts: int):
    delay = policy.delay_after(attempts)
    assert timedelta(0) <= delay <= policy.longest


@given(policies(st.just(0.0)), st.integers(min_value=1, max_value=2000))
def test_delay_never_shrinks_from_one_attempt_to_the_next(policy: RetryPolicy, attempts: int):
    assert policy.delay_after(attempts) <= policy.delay_after(attempts + 1)


@given(policies(), ATTEMPTS)
def test_jitter_subtracts_no_more_than_its_share(policy: RetryPolicy, attempts: int):
    whole = RetryPolicy(
        max_attempts=policy.max_attempts,
        first=policy.first,
        longest=policy.longest,
        factor=policy.factor,
        jitter=0,
    ).delay_after(attempts)
    delay = policy.delay_after(attempts)
    assert whole * (1 - policy.jitter) - MILLISECOND <= delay <= whole


@given(st.integers(min_value=1, max_value=50), ATTEMPTS)
def test_attempts_end_exactly_at_their_maximum(most: int, attempts: int):
    policy = RetryPolicy(max_attempts=most)
    assert (policy.delay_after(attempts) is None) == (attempts >= most)


def test_delay_doubles_from_the_first_to_the_longest():
    policy = RetryPolicy(first=timedelta(seconds=1), longest=timedelta(seconds=10), jitter=0)
    waits = [policy.delay_after(attempts).total_seconds() for attempts in range(1, 8)]
    assert waits == [1, 2, 4, 8, 10, 10, 10]


def test_slow_growth_reaches_the_longest_delay_too():
    policy = RetryPolicy(
        max_attempts=10**6,
        first=timedelta(seconds=1),
        longest=timedelta(minutes=10),
        factor=1.01,
        jitter=0,
    )
    assert policy.delay_after(10**5) == timedelta(minutes=10)


def test_jitter_spreads_the_delays_of_rows_that_failed_together():
    policy = RetryPolicy(first=timedelta(minutes=1), jitter=0.5)
    assert len({policy.delay_after(1) for _ in range(50)}) > 40


@pytest.mark.parametrize(
    ("refused", "error", "ends"),
    [
        ((Refused,), Refused("no stock"), True),
        ((Refused,), ValueError("a bug"), False),
        ((LookupError,), KeyError("a subclass"), True),
        ((KeyError,), Refused("no stock"), True),
        ((KeyError,), ValueError("a bug"), False),
        ((), Refused("no stock"), True),
        ((Refused,), None, False),
    ],
)
def test_errors_to_refuse_on_end_the_attempts_at_once(refused, error, ends):
    policy = RetryPolicy(refuse_on=refused)
    assert (policy.delay_after(1, error) is None) == ends


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_attempts": 0}, "max_attempts must be at least 1"),
        ({"max_attempts": 2.5}, "max_attempts must be an integer, not 2.5"),
        ({"max_attempts": float("nan")}, "max_attempts must be an integer, not nan"),
        ({"max_attempts": "3"}, "max_attempts must be an integer, not '3'"),
        ({"first": 5}, "first must be a timedelta of at most 3650 days, not 5"),
        ({"longest": timedelta.max}, "longest must be a timedelta of at most 3650 days"),
        ({"ladder": (1,)}, "a wait of ladder must be a timedelta of at most 3650 days, not 1"),
        ({"ladder": timedelta(seconds=5)}, "ladder must be a tuple of waits"),
        ({"then": ["park"]}, "then must be a text"),
        ({"factor": "2"}, "factor must be a number, not '2'"),
        ({"refuse_on": (KeyboardInterrupt,)}, "refuse_on must be a tuple of types of Exception"),
        ({"expected": (CancelledError,)}, "expected must be a tuple of types of Exception"),
        ({"first": timedelta(seconds=-1)}, "first must not be negative"),
        ({"first": timedelta(hours=1)}, "longest must not be shorter than first"),
        ({"factor": 0.5}, "factor must be"),
        ({"factor": float("nan")}, "factor must be"),
        ({"factor": float("inf")}, "factor must be"),
        ({"jitter": 1.5}, "jitter must be between 0 and 1"),
        ({"jitter": float("nan")}, "jitter must be between 0 and 1"),
        ({"ladder": (timedelta(seconds=-1),)}, "ladder must not hold a negative wait"),
        ({"refuse_on": KeyError}, "refuse_on must be a tuple of types of Exception"),
        ({"refuse_on": ("KeyError",)}, "refuse_on must be a tuple of types of Exception"),
        ({"refuse_on": (int,)}, "refuse_on must be a tuple of types of Exception"),
        ({"expected": KeyError}, "expected must be a tuple of types of Exception"),
        ({"expected": (Refused,)}, "a type in expected is a type of refuse_on too"),
        ({"then": "parks"}, "then must be 'rollback' or 'park'"),
        ({"refuse_on": (KeyError,), "give_up_on": (OSError,)}, "refuse_on and its deprecated name"),
    ],
)
def test_impossible_policy_is_refused_with_its_problem(settings, problem):
    with pytest.raises(ConfigurationError, match=f"retry policy: {problem}"):
        RetryPolicy(**settings)


def test_longest_possible_delay_does_not_overflow():
    policy = RetryPolicy(first=LONGEST_WAIT, longest=LONGEST_WAIT, jitter=0)
    assert policy.delay_after(5) == LONGEST_WAIT


def waits_of(policy: RetryPolicy) -> list[timedelta]:
    """Return all delays of a policy, from the first to the one before the last attempt."""
    delays = [policy.delay_after(attempts) for attempts in range(1, policy.max_attempts)]
    return [delay for delay in delays if delay is not None]


def test_rocketmq_levels_take_four_hours_and_three_quarters():
    policy = RetryPolicy.levels(start=3, attempts=16)
    waits = waits_of(policy)
    assert waits == list(LEVELS[2:])
    assert len(waits) == 16
    # RocketMQ's own documentation rounds it: 4 h 46 min.
    assert sum(waits, timedelta(0)) == timedelta(hours=4, minutes=45, seconds=40)
    assert policy.delay_after(17) is None
    assert RetryPolicy.levels() == policy


def test_levels_may_start_anywhere_and_stay_on_the_last():
    waits = waits_of(RetryPolicy.levels(start=17, attempts=4))
    assert [wait.total_seconds() / 3600 for wait in waits] == [1, 2, 2, 2]
    assert waits_of(RetryPolicy.levels(start=1, attempts=2)) == list(LEVELS[:2])


def test_levels_without_further_attempts_give_up_at_once():
    assert RetryPolicy.levels(attempts=0).delay_after(1) is None


def test_levels_have_jitter_and_errors_to_refuse_on():
    policy = RetryPolicy.levels(jitter=0.5, refuse_on=(KeyError,), expected=(OSError,), then="park")
    assert policy.expected == (OSError,)
    assert LEVELS[2] / 2 <= policy.delay_after(1) <= LEVELS[2]
    assert len({policy.delay_after(1) for _ in range(50)}) > 40
    assert policy.delay_after(1, KeyError()) is None
    assert policy.delay_after(1, Refused()) is None
    assert policy.delay_after(1, ValueError()) is not None
    assert policy.delay_after(1, OSError()) is not None


def test_default_policy_waits_seven_to_nine_minutes_in_all():
    longest = sum(waits_of(RetryPolicy(jitter=0)), timedelta(0))
    assert longest == timedelta(seconds=511)
    assert longest * (1 - RetryPolicy().jitter) == timedelta(seconds=408.8)


def test_types_to_refuse_on_are_added_to_refused():
    assert RetryPolicy().refuse_on == (Refused,)
    assert RetryPolicy(refuse_on=(KeyError,)).refuse_on == (Refused, KeyError)
    assert RetryPolicy(refuse_on=(Refused,)) == RetryPolicy()


@pytest.mark.parametrize("make", [RetryPolicy, RetryPolicy.levels])
def test_give_up_on_means_refuse_on_and_is_deprecated(make):
    with pytest.warns(DeprecationWarning, match="use refuse_on") as warned:
        policy = make(give_up_on=(KeyError,))
    assert policy == make(refuse_on=(KeyError,))
    assert [each.filename for each in warned] == [__file__]
    assert replace(policy, then="park").refuse_on == (Refused, KeyError)
    with pytest.raises(ConfigurationError, match="refuse_on and its deprecated name"):
        make(refuse_on=(OSError,), give_up_on=(KeyError,))


def test_event_is_parked_after_its_attempts_only_on_request():
    assert RetryPolicy().then is None
    assert RetryPolicy.levels(then="park").then == "park"


@pytest.mark.parametrize("asked", [{"start": 0}, {"start": 19}, {"attempts": -1}])
def test_unknown_level_is_refused(asked):
    with pytest.raises(ConfigurationError, match="start must be 1 to 18"):
        RetryPolicy.levels(**asked)
