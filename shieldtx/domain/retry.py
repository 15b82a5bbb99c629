"""The time of the next attempt, or the decision to give up."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from shieldtx.domain.schedule import LEVELS
from shieldtx.errors import ConfigurationError, Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, or a ladder of waits, up to a number of attempts.

    The wait grows by `factor` (2: it doubles) from `first` up to `longest`. A random share of up to
    `jitter` (0 to 1) is subtracted, so that rows that failed together do not return together.
    Errors of the types in `give_up_on` end the attempts at once, as `Refused` always does.
    """

    max_attempts: int = 10
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=10)
    factor: float = 2.0
    jitter: float = 0.2
    give_up_on: tuple[type[BaseException], ...] = field(default=(Refused,))
    ladder: tuple[timedelta, ...] = ()
    """Explicit waits instead of growing ones; the last one applies to all further attempts."""

    @classmethod
    def levels(
        cls,
        *,
        start: int = 3,
        attempts: int = 16,
        jitter: float = 0.0,
        give_up_on: tuple[type[BaseException], ...] = (Refused,),
    ) -> Self:
        """Return the policy of RocketMQ's consumers: each wait is that of the next delay level.

        As in RocketMQ, `attempts` does not count the first one. The default waits are 10 s, 30 s, 1
        min and so on to 2 h: 4 h 46 min in all. After level 18 the wait stays the same. Raises
        ConfigurationError for a `start` that is not a level, or negative `attempts`.
        """
        if not 1 <= start <= len(LEVELS) or attempts < 0:
            raise ConfigurationError(
                f"retry policy: start must be 1 to {len(LEVELS)} and attempts not negative, not "
                f"{start} and {attempts}"
            )
        ladder = LEVELS[start - 1 :][: max(attempts, 1)]
        return cls(
            max_attempts=attempts + 1,
            first=ladder[0],
            longest=ladder[-1],
            jitter=jitter,
            give_up_on=give_up_on,
            ladder=ladder,
        )

    def __post_init__(self) -> None:
        """Refuse a policy that could never try or never wait; add Refused to `give_up_on`."""
        problems = {
            "max_attempts must be at least 1": self.max_attempts < 1,
            "first must not be negative": self.first < timedelta(0),
            "longest must not be shorter than first": self.longest < self.first,
            "factor must be finite and at least 1": not 1 <= self.factor < math.inf,
            "jitter must be between 0 and 1": not 0 <= self.jitter <= 1,
            "ladder must not hold a negative wait": any(w < timedelta(0) for w in self.ladder),
            "give_up_on must be a tuple of exception types": not _are_errors(self.give_up_on),
        }
        for problem, holds in problems.items():
            if holds:
                raise ConfigurationError(f"retry policy: {problem}, in {self}")
        if Refused not in self.give_up_on:
            object.__setattr__(self, "give_up_on", (Refused, *self.give_up_on))

    def delay_after(self, attempts: int, error: BaseException | None = None) -> timedelta | None:
        """Return the wait after the `attempts`-th attempt failed with `error`; None: give up."""
        if attempts >= self.max_attempts or isinstance(error, self.give_up_on):
            return None
        wait = self._whole_wait(max(attempts - 1, 0))
        return wait - wait * (self.jitter * random.random())  # noqa: S311  spread, not secrecy

    def _whole_wait(self, before: int) -> timedelta:
        """Return the wait after an attempt with `before` attempts before it, without jitter."""
        if self.ladder:
            return self.ladder[min(before, len(self.ladder) - 1)]
        try:
            return min(self.first * self.factor**before, self.longest)
        except OverflowError:
            # Beyond any number, so above the longest wait too: unless there is nothing to double.
            return self.longest if self.first else self.first


def _are_errors(kinds: object) -> bool:
    """Whether this is a tuple of exception types: `isinstance` fails at an error otherwise."""
    return isinstance(kinds, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    )
