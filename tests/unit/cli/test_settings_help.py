"""The list of variables in `shieldtx --help`."""

from __future__ import annotations

from shieldtx.cli.program import program
from shieldtx.settings.environment import OTHER_VARIABLES
from shieldtx.settings.settings import Settings

HELP = program.info.epilog.splitlines()


def line(name: str) -> str:
    (found,) = [each for each in HELP if each.startswith(f"- `SHIELDTX_{name}` ")]
    return found


def test_help_names_every_variable_with_a_phrase():
    for name in Settings.model_fields:
        assert len(line(name.upper()).split()) > 3
    for name in OTHER_VARIABLES:
        assert len(line(name.removeprefix("SHIELDTX_")).split()) > 3


def test_help_shows_defaults_as_variables_have_them():
    assert line("TRACE").endswith("(false)")
    assert line("RELAY_BATCH_SIZE").endswith("(1000; 1 to 10000)")
    assert line("RETENTION_PARKED").endswith("(0, for ever)")
