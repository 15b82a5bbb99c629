"""What files of a deployment run: their commands, and the applications that they load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import typer.main

from shieldtx.cli.program import program
from tests.support.project import ROOT


def understood(arguments: list[str]) -> str:
    """Parse a command line as shieldtx does, and return the command that would run.

    The command may be a group, which runs itself when none of its commands is named.
    """
    command: Any = typer.main.get_command(program)
    context: Any = None
    path: list[str] = []
    rest = arguments
    while hasattr(command, "resolve_command"):
        context = command.make_context("shieldtx", list(rest), parent=context)
        words = [*context._protected_args, *context.args]
        if not words and command.invoke_without_command:
            return " ".join(path)
        name, command, rest = command.resolve_command(context, words)
        path.append(name)
    command.make_context(path[-1], list(rest), parent=context)
    return " ".join(path)


def groups_of(application: str, environment: Mapping[str, str]) -> set[str]:
    """Load an application as the command line does, and return the names of its groups.

    In a process of its own: a module of the examples reads its settings when it is imported.
    """
    loading = (
        "import json; from shieldtx.cli.app_loading import load; "
        f"print(json.dumps(sorted(load({application!r}).groups)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", loading],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    return set(json.loads(loaded.stdout))
