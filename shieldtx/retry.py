"""When to try again, or that there is no again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timedelta

from shieldtx.errors import ConfigurationError, Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, up to a number of attempts.

    The waiting time doubles (`factor`) from `first` on up to `longest`; of it, a random share of up
    to `jitter` (0 to 1) is taken off, so that rows that failed together do not come back together.
    Errors of the types in `give_up_on` end the attempts at once.
    """

    max_attempts: int = 10
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=10)
    factor: float = 2.0
    jitter: float = 0.2
    give_up_on: tuple[type[BaseException], ...] = field(default=(Refused,))

    def __post_init__(self) -> None:
        """Refuse a policy that could never try or never wait."""
        problems = {
            "max_attempts must be at least 1": self.max_attempts < 1,
            "first must not be negative": self.first < timedelta(0),
            "longest must not be shorter than first": self.longest < self.first,
            "factor must be finite and at least 1": not 1 <= self.factor < math.inf,
            "jitter must be between 0 and 1": not 0 <= self.jitter <= 1,
        }
        for problem, holds in problems.items():
            if holds:
                raise ConfigurationError(f"retry policy: {problem}, in {self}")

    def delay_after(self, attempts: int, error: BaseException | None = None) -> timedelta | None:
        """Return the wait after the `attempts`-th attempt failed with `error`; None: give up."""
        if attempts >= self.max_attempts or isinstance(error, self.give_up_on):
            return None
        try:
            wait = min(self.first * self.factor ** max(attempts - 1, 0), self.longest)
        except OverflowError:
            # Beyond any number, so beyond the longest wait too: unless there is nothing to double.
            wait = self.longest if self.first else self.first
        return wait - wait * (self.jitter * random.random())  # noqa: S311  spread, not secrecy
