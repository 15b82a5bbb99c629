"""Errors of a command line, and their exit status where the others are outcomes of a run."""

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
        if command() == "reconcile":
            error.exit_code = int(RunOutcome.ERROR)
        raise
