"""Errors that an operator can fix, as one line and an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shieldtx.logs.explanations import explanation_of

FAILED: Final = 1
MISCONFIGURED: Final = 2
"""Also the exit status of an invalid command line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One line without secrets or line breaks, and an exit status."""

    line: str
    status: int


def failure_of(error: BaseException | None) -> Failure | None:
    """Return the report of an error; None for a defect, which needs its traceback."""
    explanation = explanation_of(error)
    if explanation is None:
        return None
    status = MISCONFIGURED if explanation.is_setting else FAILED
    return Failure(line=explanation.line, status=status)
