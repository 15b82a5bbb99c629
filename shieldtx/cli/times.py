"""Points in time of command line options."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from shieldtx.errors import ConfigurationError

EXAMPLE: Final = "2031-05-01T08:00:00+02:00"


def time_of(option: str, text: str) -> datetime:
    """Return the time that a text in ISO 8601 means; a date without a time zone is ambiguous."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option}: {text!r} is not a time; write it as {EXAMPLE}"
        ) from None
    if time.utcoffset() is None:
        raise ConfigurationError(f"{option}: {text!r} has no time zone; write it as {EXAMPLE}")
    return time
