"""Each command of the documentation is one that `--help` knows, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from shieldtx.cli.program import program
from tests.docs.pages import PAGES, commands, name_of
from tests.support.project import ROOT

COMMAND = typer.main.get_command(program)
NOT_CHECKED = {"CHANGELOG.md", "commands.md"}
"""The first may name commands of the past, the second is written from the commands."""


def unknown(line: str) -> str | None:
    """Return what a command line has that shieldtx has not; None for nothing."""
    words = [
        word for word in shlex.split(line, comments=True)[1:] if word not in {"...", "…", "\\"}
    ]
    command, options = COMMAND, set(_options(COMMAND))
    values = 0
    for word in words:
        if values:
            values -= 1
        elif word.startswith("-"):
            name = word.partition("=")[0]
            if name not in options:
                return name
            values = int(command is COMMAND and "=" not in word)
        elif found := getattr(command, "commands", {}).get(word):
            command = found
            options |= set(_options(command))
        elif getattr(command, "commands", None) and not getattr(
            command, "invoke_without_command", False
        ):
            return word
    return None


def _options(command: typer.core.TyperCommand) -> list[str]:
    named = [
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    return [*named, "--help", "-h"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_page_exist(page: Path) -> None:
    if page.name in NOT_CHECKED:
        return
    wrong = {line: problem for line in commands(page) if (problem := unknown(line))}
    assert not wrong


def test_readme_starts_a_consumer_for_each_of_its_groups() -> None:
    readme = (ROOT / "README.md").read_text()
    groups = re.findall(r'@shield\.consumer\("(\w+)"\)', readme)
    assert groups
    assert re.findall(r"^shieldtx consume (\w+)", readme, re.MULTILINE) == groups


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("shieldtx relay", None),
        ("shieldtx dead list --json", None),
        ("shieldtx dead lst", "lst"),
        ("shieldtx relays", "relays"),
        ("shieldtx status --colour", "--colour"),
        ("shieldtx consume stock --log-format json", None),
    ],
)
def test_unknown_commands_and_options_are_found(line: str, problem: str | None) -> None:
    assert unknown(line) == problem
