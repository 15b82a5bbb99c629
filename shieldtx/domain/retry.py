"""The time of the next attempt, or the decision to give up."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from datetime import timedelta
from typing import Final, Literal, Self, TypeAlias, get_args

from shieldtx.domain.schedule import LEVELS
from shieldtx.errors import ConfigurationError, Refused

Then: TypeAlias = Literal["rollback", "park"]
"""What follows the last attempt at an event: its rollback event, or an operator's decision."""

_THEN: Final = get_args(Then)

LONGEST_WAIT: Final = timedelta(days=3650)
"""The maximum of a wait: the database must be able to add it to the current time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, or a ladder of waits, up to a number of attempts.

    The wait grows by `factor` (2: it doubles) from `first` up to `longest`. A random share of up to
    `jitter` (0 to 1) is subtracted, so that rows that failed together do not return together.
    Errors of the types in `refuse_on` refuse the event at once, as `Refused` always does: its
    rollback event is written. After the last attempt that any other error ends, `then` decides
    between the rollback event and "park": the event is DEAD until an operator decides. None: "park"
    for events of a foreign topic, whose producer reads no rollback events, and otherwise
    "rollback".

    Errors of the types in `expected` are failures that the business knows and that may pass, such
    as a product that is out of stock until the next delivery. They are tried again like others, and
    never taken for a defect of the handler, which pauses it. Other errors are unexpected.

    A rollback whose compensation fails is always DEAD, whatever `then` says. `give_up_on` is the
    deprecated name of `refuse_on`.
    """

    max_attempts: int = 10
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=10)
    factor: float = 2.0
    jitter: float = 0.2
    refuse_on: tuple[type[BaseException], ...] = (Refused,)
    expected: tuple[type[BaseException], ...] = ()
    then: Then | None = None
    ladder: tuple[timedelta, ...] = ()
    """Explicit waits instead of growing ones; the last one applies to all further attempts."""
    give_up_on: InitVar[tuple[type[BaseException], ...] | None] = None

    @classmethod
    def levels(
        cls,
        *,
        start: int = 3,
        attempts: int = 16,
        jitter: float = 0.0,
        refuse_on: tuple[type[BaseException], ...] = (Refused,),
        expected: tuple[type[BaseException], ...] = (),
        then: Then | None = None,
        give_up_on: tuple[type[BaseException], ...] | None = None,
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
        if give_up_on is not None:
            refuse_on = _renamed(refuse_on, give_up_on, level=1)
        ladder = LEVELS[start - 1 :][: max(attempts, 1)]
        return cls(
            max_attempts=attempts + 1,
            first=ladder[0],
            longest=ladder[-1],
            jitter=jitter,
            refuse_on=refuse_on,
            expected=expected,
            then=then,
            ladder=ladder,
        )

    def __post_init__(self, give_up_on: tuple[type[BaseException], ...] | None) -> None:
        """Refuse a policy that could never try or never wait; add Refused to `refuse_on`."""
        if give_up_on is not None:
            # The constructor's caller is two levels above.
            renamed = _renamed(self.refuse_on, give_up_on, level=2)
            object.__setattr__(self, "refuse_on", renamed)
        self._check_types()
        problems = {
            "max_attempts must be at least 1": self.max_attempts < 1,
            "first must not be negative": self.first < timedelta(0),
            "longest must not be shorter than first": self.longest < self.first,
            "factor must be finite and at least 1": not 1 <= self.factor < math.inf,
            "jitter must be between 0 and 1": not 0 <= self.jitter <= 1,
            "ladder must not hold a negative wait": any(w < timedelta(0) for w in self.ladder),
            "refuse_on must be a tuple of types of Exception": not _are_errors(self.refuse_on),
            "expected must be a tuple of types of Exception": not _are_errors(self.expected),
            "a type in expected is a type of refuse_on too, which gives up at once": _overlap(
                self.expected, self.refuse_on
            ),
            f"then must be {' or '.join(map(repr, _THEN))}": self.then not in {None, *_THEN},
        }
        for problem, holds in problems.items():
            if holds:
                raise ConfigurationError(f"retry policy: {problem}, in {self}")
        if Refused not in self.refuse_on:
            object.__setattr__(self, "refuse_on", (Refused, *self.refuse_on))

    def _check_types(self) -> None:
        """Refuse values that cannot be compared, such as a number of seconds as a wait."""
        if not isinstance(self.ladder, Sequence):
            raise ConfigurationError(
                f"retry policy: ladder must be a tuple of waits, not {self.ladder!r}"
            )
        if not isinstance(self.then, str | None):
            raise ConfigurationError(f"retry policy: then must be a text, not {self.then!r}")
        most: object = self.max_attempts
        if not isinstance(most, int) or isinstance(most, bool):
            raise ConfigurationError(f"retry policy: max_attempts must be an integer, not {most!r}")
        waits: list[tuple[str, object]] = [("first", self.first), ("longest", self.longest)]
        for name, wait in waits + [("a wait of ladder", each) for each in self.ladder]:
            if not isinstance(wait, timedelta) or wait > LONGEST_WAIT:
                raise ConfigurationError(
                    f"retry policy: {name} must be a timedelta of at most {LONGEST_WAIT.days} "
                    f"days, not {wait!r}"
                )
        numbers: dict[str, object] = {"factor": self.factor, "jitter": self.jitter}
        for name, number in numbers.items():
            if not isinstance(number, int | float):
                raise ConfigurationError(f"retry policy: {name} must be a number, not {number!r}")

    def delay_after(self, attempts: int, error: BaseException | None = None) -> timedelta | None:
        """Return the wait after the `attempts`-th attempt failed with `error`; None: give up."""
        if attempts >= self.max_attempts or isinstance(error, self.refuse_on):
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


def _renamed(
    refuse_on: tuple[type[BaseException], ...],
    give_up_on: tuple[type[BaseException], ...],
    *,
    level: int,
) -> tuple[type[BaseException], ...]:
    """Return the types of the deprecated `give_up_on`; the warning is for `level` callers above."""
    if refuse_on != (Refused,):
        raise ConfigurationError(
            "retry policy: refuse_on and its deprecated name give_up_on are both given: remove "
            "give_up_on"
        )
    warnings.warn(
        "give_up_on of RetryPolicy is deprecated: use refuse_on, which has the same meaning",
        DeprecationWarning,
        stacklevel=level + 2,
    )
    return give_up_on


def _overlap(
    expected: tuple[type[BaseException], ...], refuse_on: tuple[type[BaseException], ...]
) -> bool:
    """Whether a type is declared twice; the later rules find what is no tuple of types."""
    if not (_are_errors(expected) and _are_errors(refuse_on)):
        return False
    return any(issubclass(kind, (Refused, *refuse_on)) for kind in expected)


def _are_errors(kinds: object) -> bool:
    """Whether this is a tuple of types of Exception: other errors end the worker."""
    return isinstance(kinds, tuple) and all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
    )


def checked_retry(retry: object, *, of: str) -> RetryPolicy:
    """Return a retry policy, by default the usual one; raises ConfigurationError for others."""
    if retry is None:
        return RetryPolicy()
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError(
            f"{of}: retry must be a RetryPolicy, such as RetryPolicy(max_attempts=3), not {retry!r}"
        )
    return retry
