"""What is wrong with the settings, in lines that name the variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PREFIX: Final = "SHIELDTX_"
_REQUIRED: Final = {
    "SOURCE": "the name of this service, as in orders",
    "DATABASE_URL": "the URL of the service's own database, as in "
    "postgresql+psycopg://user:password@host:5432/name",
}
"""What the settings without a default are."""
_LONGEST_SHOWN: Final = 40


def problems_of(error: ValidationError) -> list[str]:
    """Return a line about each invalid setting, without the value of a secret."""
    return [_problem(each) for each in error.errors()]


def _problem(found: ErrorDetails) -> str:
    name = "_".join(str(part) for part in found["loc"]).upper()
    message = found["msg"].removeprefix("Value error, ")
    if not name:
        return message
    if found["type"] == "missing":
        meaning = f": {_REQUIRED[name]}" if name in _REQUIRED else ""
        return f"{PREFIX}{name} is not set{meaning}"
    if found["type"] == "extra_forbidden":
        return f"{PREFIX}{name}: shieldtx has no such setting"
    if found["type"].startswith("time_delta"):
        shown = repr(str(found["input"])[:_LONGEST_SHOWN])
        message = f"{shown} is not a duration; use seconds, or ISO 8601 as in PT15M"
    return f"{PREFIX}{name}: {message}"
