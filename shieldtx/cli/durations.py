"""Durations of command line options, in the format of the settings."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from shieldtx.errors import ConfigurationError

_DURATION: Final = TypeAdapter(timedelta)


def duration_of(option: str, text: str) -> timedelta:
    """Return the duration that a text means: a plain number counts seconds."""
    with suppress(ValueError, OverflowError):
        return timedelta(seconds=float(text))
    with suppress(ValidationError):
        return _DURATION.validate_python(text)
    raise ConfigurationError(
        f"{option}: {text!r} is not a duration; use seconds, or ISO 8601 as in PT15M or P7D"
    )
