"""Durations as people write them: `90`, `2h`, `1 h 30 min`, `7 days`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

HOW_TO_WRITE: Final = "use seconds (90), units (2h, 15 min, 7d) or ISO 8601 (PT15M)"

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
"""The units of timedelta by their first letters."""
_UNIT: Final = r"(d(?:ays?)?|h(?:ours?)?|m(?:in(?:utes?)?)?|s(?:ec(?:onds?)?)?)"
_PART: Final = re.compile(rf"(\d+(?:\.\d+)?) *{_UNIT}(?![a-z])", re.IGNORECASE)
_WHOLE: Final = re.compile(rf" *(?:{_PART.pattern} *)+", re.IGNORECASE)


def read_duration(value: Any) -> Any:
    """Convert a text with units, or a number without one, which are seconds; else return it.

    Environment variables are always text. pydantic reads the other texts as ISO 8601.
    """
    if not isinstance(value, str):
        return value
    try:
        with_units = _with_units(value)
        return timedelta(seconds=float(value)) if with_units is None else with_units
    except ValueError:
        return value
    except OverflowError:
        raise ValueError("longer than a duration can be") from None


def _with_units(text: str) -> timedelta | None:
    """Return the duration of a text with units, each at most once; None for any other text.

    Raises OverflowError for a duration that no timedelta represents.
    """
    if not _WHOLE.fullmatch(text):
        return None
    parts = [(_UNITS[unit[0].lower()], float(number)) for number, unit in _PART.findall(text)]
    named = dict(parts)
    return timedelta(**named) if len(named) == len(parts) else None
