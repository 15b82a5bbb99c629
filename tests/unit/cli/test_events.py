"""`shieldtx events`: export and check, without a database and without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shieldtx.cli.program import program

RELEASE = """
from dataclasses import dataclass
from shieldtx import Settings, ShieldTx

@dataclass
class Booking:
    room: int
    {field}

shield = ShieldTx(Settings(source="desk", database_url="postgresql+psycopg://nowhere.invalid/x"))
shield.declare("bookings.made", payload=Booking, version={version})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def release(folder: Path, name: str, field: str = "pass", version: int = 1) -> str:
    """Write the module of a release, and return its --app."""
    (folder / f"{name}.py").write_text(RELEASE.format(field=field, version=version))
    return f"{name}:shield"


def run(*words: str) -> Any:
    return CliRunner().invoke(program, words)


def export(app: str, path: Path, *options: str) -> str:
    result = run("--app", app, "events", "export", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    path.write_text(result.stdout)
    return str(path)


def test_export_is_asyncapi_by_default(folder: Path) -> None:
    path = export(release(folder, "events_first"), folder / "a.json", "--release", "1.2")
    document = json.loads(Path(path).read_text())
    assert (document["asyncapi"], document["info"]["version"]) == ("3.0.0", "1.2")
    path = export("events_first:shield", folder / "b.json", "--format", "jsonschema")
    assert list(json.loads(Path(path).read_text())["$defs"]) == ["bookings.made"]


@pytest.mark.parametrize("format_", ["asyncapi", "jsonschema"])
def test_check_ends_with_1_for_a_change_that_breaks(folder: Path, format_: str) -> None:
    old = export(release(folder, f"old_{format_}"), folder / "old.json", "--format", format_)
    app = release(folder, f"new_{format_}", "price: int")
    new = export(app, folder / "new.json", "--format", format_)
    problem = "bookings.made: payload.price: is required and is new (old events, new code)"
    for result in (run("events", "check", old, new), run("--app", app, "events", "check", old)):
        assert (result.exit_code, result.stderr) == (1, "")
        assert result.stdout == f"breaks  {problem}\n1 changes break\n"
    forward = run("events", "check", old, new, "--compatibility", "forward")
    assert (forward.exit_code, forward.stdout) == (0, "compatible (forward)\n")
    assert run("events", "check", new, old, "--compatibility", "backward").exit_code == 0


def test_check_accepts_a_new_version_with_a_note(folder: Path) -> None:
    old = export(release(folder, "version_1"), folder / "old.json")
    app = release(folder, "version_2", "price: int", version=2)
    result = run("--app", app, "events", "check", old, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "compatible": True,
        "compatibility": "full",
        "changes": [
            {
                "event": "bookings.made",
                "problem": "version 1 becomes 2: release the readers first",
                "breaks": False,
            }
        ],
    }


def test_check_of_a_missing_file_is_one_line(folder: Path) -> None:
    result = run("events", "check", "missing.json", "missing.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: missing.json is not a readable JSON document")
    assert result.stderr.count("\n") == 1


def test_check_without_a_second_export_needs_an_application(folder: Path) -> None:
    old = export(release(folder, "alone"), folder / "old.json")
    result = run("events", "check", old)
    assert result.exit_code == 2
    assert "--app" in result.stderr
