"""The help of the command line: short without arguments, and without the types of flags."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from shieldtx.cli.program import program


def test_program_without_arguments_prints_a_short_help():
    result = CliRunner().invoke(program, [])

    assert result.exit_code == 2
    assert "shieldtx --help has the settings and the exit statuses." in result.output
    assert "consume" in result.output
    assert "SHIELDTX_DATABASE_URL" not in result.output
    assert "SHIELDTX_DATABASE_URL" in CliRunner().invoke(program, ["--help"]).output


@pytest.mark.parametrize(
    "command",
    [(), ("relay",), ("dead", "discard"), ("reconcile", "repair"), ("half", "commit"), ("dev",)],
    ids=" ".join,
)
def test_help_shows_no_types_of_flags_and_lists(command: tuple[str, ...]):
    output = CliRunner().invoke(program, [*command, "--help"], terminal_width=200).output

    assert "<bool>" not in output
    assert "<list[" not in output
