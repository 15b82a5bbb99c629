"""Options with a list of allowed values: a wrong value is a usage error, and case is free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from shieldtx.cli.program import program


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command and group below a command, with the arguments that lead to it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


def choices() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each option with choices, and the words of its command with all that it requires."""
    for path, command in commands(typer.main.get_command(program)):
        required = (param for param in command.params if param.required)
        words = [word for param in required for word in (*option_of(param), "x")]
        for option in command.params:
            if values_of(option):
                yield (*path, *words), option


def option_of(param: Any) -> list[str]:
    return param.opts[:1] if param.param_type_name == "option" else []


def values_of(option: Any) -> list[str]:
    """Return the allowed values of an option, or none if it takes any."""
    # Typer before 0.27 has the type of its options under Click's name.
    described = option.type_descriptor if hasattr(option, "type_descriptor") else option.type
    return [str(value) for value in getattr(described, "choices", None) or ()]


CHOICES = list(choices())
each_choice = pytest.mark.parametrize(
    ("words", "option"), CHOICES, ids=[" ".join((*words, o.opts[0])) for words, o in CHOICES]
)


def run(words: tuple[str, ...], option: Any, value: str) -> Any:
    # Without settings, each command ends early.
    without = dict.fromkeys(("SHIELDTX_SOURCE", "SHIELDTX_DATABASE_URL", "SHIELDTX_APP"))
    command = words or ("status",)
    return CliRunner().invoke(program, [*command, option.opts[0], value], env=without)


def test_commands_with_choices_are_found():
    assert {o.opts[0] for _, o in CHOICES} == {
        *("--log-level", "--log-format", "--status", "--kind", "--verdict", "--format"),
        "--compatibility",
    }


@each_choice
def test_wrong_value_is_a_usage_error_with_the_allowed_ones(words: tuple[str, ...], option: Any):
    result = run(words, option, "wrong")
    # 2 is an outcome of a reconciliation.
    assert result.exit_code == (3 if "reconcile" in words else 2), result.output
    assert result.stdout == ""
    assert "Usage: " in result.stderr
    assert "Traceback" not in result.stderr
    shown = re.sub(r"[\s│]+", "", result.stderr).lower()
    assert option.opts[0] in shown
    assert [value for value in values_of(option) if f"'{value.lower()}'" not in shown] == []


@each_choice
def test_value_in_another_case_is_accepted(words: tuple[str, ...], option: Any):
    for value in values_of(option):
        result = run(words, option, value.swapcase())
        assert "Usage: " not in result.stderr, result.stderr
        # The first problem is another one: missing settings, or a missing choice of rows.
        problems = ("SHIELDTX_", "--app", "name rows by their ids")
        assert any(problem in result.stderr for problem in problems)


@pytest.mark.parametrize("option", ["--app", "--log-level", "--log-format"])
def test_common_option_at_the_end_needs_its_value(option: str):
    result = CliRunner().invoke(program, ["status", option])
    assert result.exit_code == 2
    assert f"Option '{option}' requires an argument" in result.stderr
