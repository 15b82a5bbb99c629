"""Errors of a command line, and the exit status of errors where 1 and 2 are outcomes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from shieldtx.reconcile.findings import RunOutcome

# Typer does not export these two classes.
UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""The command line is wrong."""
CommandLineError: Final[Any] = typer.BadParameter.__mro__[2]
"""The base class of all errors that Typer reports itself."""


@contextmanager
def usage_errors_of(command: Callable[[], str | None]) -> Iterator[None]:
    """End usage errors of `shieldtx reconcile` with the outcome ERROR, and of others with 2.

    Of a reconciliation, 2 means that not everything could be judged.
    """
    try:
        yield
    except UsageError as error:
        error.exit_code = status_of_error(command(), error.exit_code)
        raise


def status_of_error(command: str | None, status: int) -> int:
    """Return the exit status of an error: ERROR for a reconciliation, `status` for others."""
    return int(RunOutcome.ERROR) if command == "reconcile" else status
