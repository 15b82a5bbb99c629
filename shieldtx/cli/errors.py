"""Errors that an operator can fix, as one line and an exit status."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import typer

from shieldtx.cli.logging import is_json
from shieldtx.logs.explanations import explanation_of

log = logging.getLogger(__name__)

FAILED: Final = 1
MISCONFIGURED: Final = 2
"""Also the exit status of an invalid command line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One line without secrets or line breaks, and an exit status."""

    line: str
    status: int


def report(failure: Failure) -> None:
    """Write why a command has failed: as a line, or as a record where the log is JSON."""
    if is_json():
        log.error(
            "command failed",
            extra={
                "action": "command_failed",
                "error": failure.line,
                "exit_status": failure.status,
            },
        )
    else:
        typer.echo(f"error: {failure.line}", err=True)


def failure_of(error: BaseException | None) -> Failure | None:
    """Return the report of an error; None for a defect, which needs its traceback."""
    explanation = explanation_of(error)
    if explanation is None:
        return None
    status = MISCONFIGURED if explanation.is_setting else FAILED
    return Failure(line=explanation.line, status=status)
