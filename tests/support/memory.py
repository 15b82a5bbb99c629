"""Files of tests are in memory, where there is plenty.

A database is some hundred files, and each transaction of SQLite waits for the disk: on a busy one
that takes ten times as long.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")  # noqa: S108  what is in it has names of its own
GIBIBYTE = 2**30


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Have `tmp_path` in memory."""
    # Some tests run programs from there.
    if has_plenty_of_memory() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def has_plenty_of_memory() -> bool:
    """Whether files of a few gigabytes may be in memory."""
    return (
        MEMORY.is_dir()
        and shutil.disk_usage(MEMORY).free > 4 * GIBIBYTE
        and psutil.virtual_memory().available > 8 * GIBIBYTE
    )
