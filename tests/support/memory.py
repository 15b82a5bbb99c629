"""Puts the files of tests into memory, where there is plenty.

A database is some hundred files, and each transaction of SQLite waits for the disk. On a busy disk
that takes ten times as long.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")  # noqa: S108  the names in it are unique
GIBIBYTE = 2**30


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Put `tmp_path` into memory."""
    # Some tests run programs from that folder.
    if has_plenty_of_memory() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def has_plenty_of_memory() -> bool:
    """Return whether a few gigabytes of files may be in memory."""
    return (
        MEMORY.is_dir()
        and shutil.disk_usage(MEMORY).free > 4 * GIBIBYTE
        and psutil.virtual_memory().available > 8 * GIBIBYTE
    )
