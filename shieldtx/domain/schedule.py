"""The due time of an event: after a delay, at a time, or by one of RocketMQ's levels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from shieldtx.errors import EventRefused

LEVELS = (
    *(timedelta(seconds=seconds) for seconds in (1, 5, 10, 30)),
    *(timedelta(minutes=minutes) for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(timedelta(hours=hours) for hours in (1, 2)),
)
"""The delays of levels 1 to 18: RocketMQ's default `messageDelayLevel`
(MessageStoreConfig.java)."""

EARLIEST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""A day from each end of Python's calendar: a database may return a time in any time zone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """When an event is due, by the database's clock; both None: at once."""

    delay: timedelta | None = None
    """From the writing of its row on."""
    at: datetime | None = None


def delay_of_level(level: object) -> timedelta:
    """Return the delay of a level, 1 to 18; raises EventRefused for anything else."""
    # True is an int, and not a level.
    if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= len(LEVELS):
        raise EventRefused("level", f"{level!r} is not a level: levels are 1 to {len(LEVELS)}")
    return LEVELS[level - 1]


def due(
    delay: timedelta | None = None, at: datetime | None = None, level: int | None = None
) -> Due:
    """Return the due time from one of the three arguments; at once, if none is given.

    Raises EventRefused, which names the argument, for several arguments and for impossible values.
    """
    given = {"delay": delay, "at": at, "level": level}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise EventRefused(named[0], "give either delay= or at= or level=, only one of them")
    if level is not None:
        return Due(delay=delay_of_level(level))
    if delay is not None:
        _check_delay(delay)
    if at is not None:
        _check_time(at)
    return Due(delay=delay, at=at)


def _check_delay(delay: object) -> None:
    if not isinstance(delay, timedelta):
        raise EventRefused("delay", f"a {type(delay).__name__} is not a timedelta")
    if delay < timedelta(0):
        raise EventRefused("delay", f"{delay} is in the past")
    try:
        when = datetime.now(UTC) + delay
    except OverflowError:
        when = datetime.max.replace(tzinfo=UTC)
    if when > LATEST:
        raise EventRefused("delay", f"{delay} is too far in the future: {_ENDS}")


def _check_time(at: object) -> None:
    if not isinstance(at, datetime):
        raise EventRefused("at", f"a {type(at).__name__} is not a datetime")
    if at.utcoffset() is None:
        raise EventRefused("at", f"{at} has no time zone; use an aware datetime")
    try:
        is_shown_anywhere = EARLIEST <= at.astimezone(UTC) <= LATEST
    except OverflowError:
        is_shown_anywhere = False
    if not is_shown_anywhere:
        raise EventRefused("at", f"{at} is too near to an end of the calendar: {_ENDS}")


_ENDS: Final = f"due times are from {EARLIEST:%Y-%m-%d} to {LATEST:%Y-%m-%d}"
