"""The list of variables in `shieldtx --help`."""

from __future__ import annotations

from shieldtx.cli.errors import EXIT_STATUSES
from shieldtx.cli.program import program
from shieldtx.settings.environment import OTHER_VARIABLES
from shieldtx.settings.settings import Settings
from tests.support.project import ROOT

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


def test_help_ends_with_the_exit_statuses():
    assert [line.split("`")[1] for line in HELP[-len(EXIT_STATUSES) :]] == list(EXIT_STATUSES)


def test_page_of_processes_has_the_same_exit_statuses():
    page = (ROOT / "docs/how-to/connections.md").read_text(encoding="utf-8")
    table = page.split("| exit status |")[1].split("\n\n")[0]
    rows = [row.split("|")[1].replace(" ", "") for row in table.splitlines()[2:]]
    assert rows == list(EXIT_STATUSES)
