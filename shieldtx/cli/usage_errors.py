"""Errors of a command line, and their exit status where the others are outcomes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from shieldtx.reconcile.findings import RunOutcome

# Typer does not export these two classes.
UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""The command line is wrong."""
CommandLineError: Final[Any] = typer.BadParameter.__mro__[2]
"""The base class of all errors that Typer reports itself."""


class ReconcileGroup(TyperGroup):
    """The commands of the reconciliation: a usage error has the exit status of ERROR.

    By default, it has the status 2, which means that not everything could be judged.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options of the group."""
        with usage_errors_as_error():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of a command of the group, and run it."""
        with usage_errors_as_error():
            return super().invoke(ctx)


@contextmanager
def usage_errors_as_error() -> Iterator[None]:
    """End usage errors with the outcome ERROR."""
    try:
        yield
    except UsageError as error:
        error.exit_code = int(RunOutcome.ERROR)
        raise
