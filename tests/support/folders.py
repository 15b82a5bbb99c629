"""Checks of the contents of a folder."""

from __future__ import annotations

from pathlib import Path


def assert_free_of(folder: Path, *secrets: str) -> None:
    """Assert that no file in a folder holds a secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path
