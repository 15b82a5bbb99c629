"""Options of a command that stand before its subcommand: applied or refused, never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from shieldtx.cli.program import program

COMMON = {"--app", "--log-level", "--log-format", "--version"}
"""These options may stand anywhere, and apply to each command."""


def groups(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each group of commands below a command, with the arguments that lead to it."""
    if hasattr(command, "commands"):
        yield path, command
        for name, child in command.commands.items():
            yield from groups(child, *path, name)


def in_front() -> Iterator[tuple[str, ...]]:
    """Yield each option of each group in front of each of its commands."""
    for path, group in groups(typer.main.get_command(program)):
        for option in group.params:
            if COMMON.intersection(option.opts):
                continue
            for text in (*option.opts, *option.secondary_opts):
                value = () if option.is_flag else ("7",)
                for name in group.commands:
                    yield (*path, text, *value, name)


IN_FRONT = list(in_front())


def refused(*words: str, **variables: str) -> str:
    result = CliRunner().invoke(program, words, env=variables)
    assert result.exit_code == 3, result.output
    assert result.stdout == ""
    return result.stderr


def test_reconcile_is_a_group_with_options_of_its_own():
    assert ("reconcile", "--config", "7", "repair") in IN_FRONT


@pytest.mark.parametrize("words", IN_FRONT, ids=" ".join)
def test_group_option_unknown_to_the_subcommand_is_refused(words: tuple[str, ...]):
    *_, command = words
    # The error about a missing argument of the subcommand itself would come later.
    rest = ("last",) if command == "repair" else ()

    said = refused(*words, *rest, SHIELDTX_RECONCILE_CONFIG="there is no such file")

    assert words[1] in said
    assert f"in front of `{command}` would have no effect" in said


def test_error_names_the_right_order_and_the_unknown_option():
    said = refused("reconcile", "--config", "payments.toml", "--json", "repair", "last", "--yes")
    assert said == (
        "error: --config and --json in front of `repair` would have no effect: write `shieldtx "
        "reconcile repair RUN --config ... --json`\n"
    )
    said = refused("reconcile", "--full", "--no-topics", "--config", "x.toml", "runs")
    assert said == (
        "error: --config and --full and --no-topics in front of `runs` would have no effect: write "
        "`shieldtx reconcile runs --config ...`, and leave --full and --no-topics out, which "
        "`runs` does not take\n"
    )


def test_variables_and_common_options_apply_to_every_command(tmp_path):
    said = refused(
        *("reconcile", "--log-level", "debug", "runs"),
        SHIELDTX_APP="no.module:shield",
        SHIELDTX_RECONCILE_CONFIG=str(tmp_path / "missing.toml"),
        SHIELDTX_RECONCILE_OUT="elsewhere",
        SHIELDTX_SPARK_MASTER="local[1]",
    )
    assert "missing.toml cannot be read" in said


@pytest.mark.parametrize("command", [(), ("runs",), ("repair", "last")], ids=" ".join)
def test_application_and_file_together_are_refused(command: tuple[str, ...]):
    """Otherwise the file would silently replace the requested application."""
    by_option = refused("reconcile", *command, "--config", "x.toml", "--app", "shop:shield")
    by_variable = refused(
        "reconcile", *command, "--app", "shop:shield", SHIELDTX_RECONCILE_CONFIG="x.toml"
    )

    assert by_option == by_variable
    assert by_option.startswith("error: --app shop:shield and the file x.toml both name what")


@pytest.mark.parametrize(
    "words",
    [
        ("--bogus",),
        ("--config",),
        ("--rows", "many"),
        ("--since", "yesterday"),
        ("bogus",),
        ("repair",),
        ("repair", "last", "--bogus"),
        ("runs", "--limit", "0"),
        ("--log-level", "loud"),
    ],
    ids=" ".join,
)
def test_usage_error_of_reconcile_is_not_an_outcome(words: tuple[str, ...]):
    """The exit status 2 means that not everything could be judged."""
    assert CliRunner().invoke(program, ["reconcile", *words]).exit_code == 3


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--log-level", "loud", "reconcile", "runs"), 3),
        (("--app", "reconcile", "status", "--log-level", "loud"), 2),
        (("dead", "list", "--group", "reconcile", "--log-level", "loud"), 2),
    ],
    ids=["before the command", "as the name of an application", "as the name of a group"],
)
def test_status_of_a_wrong_common_option_depends_on_the_command(words, status):
    assert CliRunner().invoke(program, words).exit_code == status
