"""`python -m shieldtx.embedded`: what it refuses. The tutorial's test runs the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shieldtx.embedded", *arguments]
    return subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("name", ["Orders", "a-b", "'; DROP", "1a", ""])
def test_name_that_is_not_an_identifier_is_refused(tmp_path: Path, name: str) -> None:
    done = run("orders", name, folder=tmp_path)
    assert done.returncode == 2
    assert "is not a name" in done.stderr


def test_env_file_of_other_servers_is_kept(tmp_path: Path) -> None:
    (tmp_path / "servers.env").write_text("export A='theirs'\n")
    done = run("orders", folder=tmp_path)
    assert done.returncode == 1
    assert "servers.env exists" in done.stderr
    assert (tmp_path / "servers.env").read_text() == "export A='theirs'\n"
