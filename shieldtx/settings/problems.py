"""What is wrong with the settings, in lines that name the variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from shieldtx.domain.durations import HOW_TO_WRITE

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PREFIX: Final = "SHIELDTX_"
REQUIRED: Final = {
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
    if not name:
        return problem_of_value(found)
    if found["type"] == "missing":
        meaning = f": {REQUIRED[name]}" if name in REQUIRED else ""
        return f"{PREFIX}{name} is not set{meaning}"
    if found["type"] == "extra_forbidden":
        return f"{PREFIX}{name}: shieldtx has no such setting"
    return f"{PREFIX}{name}: {problem_of_value(found)}"


def problem_of_value(found: ErrorDetails) -> str:
    """Return what is wrong with a value; only a text in place of a duration is shown."""
    if found["type"].startswith("time_delta"):
        shown = repr(str(found["input"])[:_LONGEST_SHOWN])
        return f"{shown} is not a duration; {HOW_TO_WRITE}"
    return found["msg"].removeprefix("Value error, ")
