"""Durations of command line options, in the format of the settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shieldtx.errors import ConfigurationError
from shieldtx.settings.fields import SecondsOrNever
from shieldtx.settings.problems import problem_of_value


def duration_of(option: str, text: str, kind: Any = SecondsOrNever) -> timedelta:
    """Return the duration that a text means, by the type of a setting."""
    try:
        duration: timedelta = TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise ConfigurationError(f"{option}: {problem_of_value(error.errors()[0])}") from None
    return duration
