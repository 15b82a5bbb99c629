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

EXIT_STATUSES: Final = {
    "0": "done; or a signal ended a worker gracefully",
    "1": "failed: the database or the broker cannot be used, a row was not changed, an event was "
    "not sent, results could not be written, or a defect, with its traceback; or a worker did not "
    "end within SHIELDTX_STOP_TIMEOUT",
    "2": "a wrong command line, or settings, tables or topics that do not fit; a restart does not "
    "help",
    "70": "a pass of a worker took longer than SHIELDTX_WATCHDOG",
    "75": "no pass of a worker succeeded for SHIELDTX_FAILURE_LIMIT",
    "128+n": "a second signal n ended a worker at once, as in 143 for SIGTERM; 130 after Ctrl-C",
    "n": "a handler of a worker raised SystemExit(n), with n from 1 to 255",
}
"""What the exit statuses of commands and workers mean, for the help and the documentation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One line without secrets, and an exit status; the end of a log has more lines."""

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
    if isinstance(error, UnicodeEncodeError):
        # The text is not shown: it may be part of a secret.
        return Failure(line="an argument or a setting is not UTF-8 text", status=MISCONFIGURED)
    explanation = explanation_of(error)
    if explanation is None:
        return None
    status = MISCONFIGURED if explanation.is_setting else FAILED
    return Failure(line=explanation.line, status=status)
