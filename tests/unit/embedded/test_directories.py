"""Temporary directories of servers, from which an ending server removes files of its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shieldtx.embedded.directories import ServerDirectory


def test_directory_is_removed_while_its_server_removes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = ServerDirectory.temporary("postgresql")
    data = directory.path / "data"
    data.mkdir()
    files = [data / f"{number}" for number in range(3000)]
    for file in files:
        file.touch()
    begun = threading.Event()

    def server() -> None:
        for file in files:
            file.unlink(missing_ok=True)
            begun.set()

    thread = threading.Thread(target=server)
    thread.start()
    begun.wait()
    directory.remove()
    thread.join()

    assert not directory.path.exists()
