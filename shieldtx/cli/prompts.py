"""The operator at the terminal: the recorded user, and the confirmation prompt."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from typing import Annotated

import typer

from shieldtx.cli.errors import FAILED
from shieldtx.errors import ConfigurationError

Who = Annotated[
    str | None,
    typer.Option("--who", help="User recorded in the audit log.", show_default="user@host"),
]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Reason of the discard, recorded in the audit log.")
]


def current_operator() -> str:
    """Return the user recorded in the audit log: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run as users without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def confirm(question: str) -> bool:
    """Ask for confirmation on standard error: standard output is for results."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    # None: closed, as in a unit without a terminal.
    return sys.stdin is not None and sys.stdin.readline().strip().lower() in {"y", "yes"}


def require_reason(reason: str) -> None:
    """Raise ConfigurationError for an empty reason."""
    if not reason.strip():
        raise ConfigurationError("--reason: give a reason for the audit log")


def confirm_discard(count: int, *, yes: bool, done: str = "discarded") -> None:
    """Ask for confirmation before rows are discarded permanently; exit without it."""
    if not yes and not confirm(f"Discard {count} permanently?"):
        typer.echo(f"Aborted: nothing was {done} (use --yes to skip the prompt)", err=True)
        raise typer.Exit(FAILED)
