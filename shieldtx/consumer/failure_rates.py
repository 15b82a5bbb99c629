"""How often calls of a handler fail: this decides how many calls one savepoint protects."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from shieldtx.ports.inbox import Attempt

_WEIGHT: Final = 0.01
"""The weight of the latest event in the average: the last hundred events count most."""

_WEIGHT_OF_DURATION: Final = 0.1
"""The weight of the latest measurement in the averages of durations."""

_FORGOTTEN: Final = 0.000_01
"""The rate below which a type needs no savepoints: about 700 events after a single failure."""

_MOSTLY: Final = 0.5

_SAVEPOINT_S: Final = 0.000_5
"""Seconds that a savepoint and its release take, mostly in SQLAlchemy, until they are measured."""

_CALL_S: Final = 0.1
"""Seconds that a call is supposed to take until one was measured."""

_SHORTEST: Final = 0.000_001
"""The minimum of a measured duration, in seconds."""


class FailureRates:
    """The moving average of failures by event type. Used by one thread.

    A type whose handler does not fail gets no savepoints, which would cost it more than a half of
    its throughput.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._savepoint_s = _SAVEPOINT_S
        self._call_s: float | None = None

    def savepoints_took(self, seconds: float, *, number: int) -> None:
        """Note how long a number of savepoints took, with their releases."""
        self._savepoint_s += _WEIGHT_OF_DURATION * (seconds / number - self._savepoint_s)

    def failed(self, attempt: Attempt) -> None:
        """Note that an attempt has failed, for whatever reason."""
        event_type = attempt.envelope.type
        rate = self._rates.get(event_type, 0.0)
        self._rates[event_type] = rate + _WEIGHT * (1 - rate)

    def succeeded(self, attempts: Sequence[Attempt], *, took: float) -> None:
        """Note that the calls for some attempts have succeeded, in `took` seconds together."""
        seconds = took / len(attempts)
        former = seconds if self._call_s is None else self._call_s
        self._call_s = former + _WEIGHT_OF_DURATION * (seconds - former)
        if not self._rates:
            return
        for attempt in attempts:
            event_type = attempt.envelope.type
            rate = self._rates.get(event_type)
            if rate is None:
                continue
            self._rates[event_type] = rate * (1 - _WEIGHT)
            if rate < _FORGOTTEN:
                del self._rates[event_type]

    def mostly_fails(self, attempt: Attempt) -> bool:
        """Whether most events of an attempt's type have failed lately."""
        return self._rate_of(attempt) > _MOSTLY

    def next_part(self, attempts: Sequence[Attempt], first: int) -> tuple[int, bool]:
        """Return where the next part of a transaction ends, and whether it needs a savepoint.

        A savepoint costs time, and so do the calls that a failure undoes with it: on average, the
        half of its calls. The number of events minimises the sum.
        """
        rate = self._rate_of(attempts[first])
        end = first + 1
        if not rate:
            while end < len(attempts) and not self._rate_of(attempts[end]):
                end += 1
            return end, False
        call_s = _CALL_S if self._call_s is None else self._call_s
        end = min(len(attempts), first + best_number(rate, self._savepoint_s, call_s))
        while end > first + 1 and not self._rate_of(attempts[end - 1]):
            end -= 1
        return end, True

    def _rate_of(self, attempt: Attempt) -> float:
        return self._rates.get(attempt.envelope.type, 0.0)


def best_number(rate: float, savepoint_s: float, call_s: float) -> int:
    """Return the number of events in a savepoint at which both costs are the same."""
    return max(1, int(sqrt(2 * savepoint_s / (rate * max(call_s, _SHORTEST)))))
