"""`python -m shieldtx.embedded`: refusals and failures. The tutorial's test runs the rest."""

from __future__ import annotations

import os
import signal
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


@pytest.mark.parametrize(
    ("program", "name"), [("postgres", "PostgreSQL"), ("java", "Apache Kafka")]
)
def test_end_of_a_server_ends_the_command(tmp_path: Path, program: str, name: str) -> None:
    command = [sys.executable, "-m", "shieldtx.embedded", "orders"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("ready: ") for line in process.stdout)
            os.kill(child_of(process.pid, program), signal.SIGKILL)
            _, errors = process.communicate(timeout=60)
        finally:
            process.terminate()

    assert process.returncode == 1
    assert errors.startswith(f"error: {name} has ended: it was ended by SIGKILL; the end of its")
    assert "postmaster.pid" not in errors.splitlines()[-1]
    assert not (tmp_path / "servers.env").exists()


def child_of(parent: int, program: str) -> int:
    """Return the process id of the child of a process that runs a program."""
    (found,) = (
        int(child)
        for children in Path(f"/proc/{parent}/task").glob("*/children")
        for child in children.read_text().split()
        if Path(f"/proc/{child}/comm").read_text().strip() == program
    )
    return found
