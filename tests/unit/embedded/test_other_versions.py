"""Other versions of the embedded servers: the variables name folders that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shieldtx.embedded import EmbeddedError
from shieldtx.embedded.child_process import Account
from shieldtx.embedded.jars import fetch_kafka
from shieldtx.embedded.other_versions import chosen_kafka, chosen_postgres, postgres_release
from shieldtx.embedded.postgres_cluster import programs


def program(folder: Path, name: str, says: str = "") -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(0o755)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is named, with programs that only print a version."""
    program(tmp_path, "postgres", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)")
    program(tmp_path, "initdb")
    monkeypatch.setenv("SHIELDTX_POSTGRES_PROGRAMS", str(tmp_path))
    return tmp_path


def test_named_programs_are_used_as_they_are(installed: Path, tmp_path: Path) -> None:
    assert programs(tmp_path / "server", None) == installed
    assert postgres_release(installed) == 15


def test_nothing_is_chosen_without_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHIELDTX_POSTGRES_PROGRAMS", raising=False)
    monkeypatch.setenv("SHIELDTX_KAFKA_JARS", "")
    assert chosen_postgres(None) is None
    assert chosen_kafka() is None


def test_folder_without_a_program_is_refused(installed: Path) -> None:
    (installed / "initdb").unlink()
    with pytest.raises(EmbeddedError, match="has no program `initdb`: name the folder"):
        chosen_postgres(None)


def test_folder_that_is_closed_to_the_account_is_refused(installed: Path) -> None:
    installed.chmod(0o700)
    with pytest.raises(EmbeddedError, match="is closed to the account nobody"):
        chosen_postgres(Account.named("nobody"))


def test_program_without_a_version_is_refused(installed: Path) -> None:
    program(installed, "postgres", "out of order")
    with pytest.raises(EmbeddedError, match="prints no version, but 'out of order"):
        postgres_release(installed)
    (installed / "postgres").write_text("#!/no/such/shell\n")
    with pytest.raises(EmbeddedError, match="does not run"):
        postgres_release(installed)


def test_named_jars_are_used_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIELDTX_KAFKA_JARS", str(tmp_path))
    with pytest.raises(EmbeddedError, match=r"has no jar kafka_2\*.jar: name the folder"):
        fetch_kafka()
    (tmp_path / "kafka_2.13-3.9.1.jar").touch()
    assert fetch_kafka() == tmp_path
