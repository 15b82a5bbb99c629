"""The exit status of usage errors under `shieldtx reconcile`, whose other statuses are outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from shieldtx.reconcile.findings import RunOutcome

_USAGE_ERROR: Final[Any] = typer.BadParameter.__bases__[0]
"""The class of all usage errors, which typer does not export."""


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
    except _USAGE_ERROR as error:
        error.exit_code = int(RunOutcome.ERROR)
        raise
