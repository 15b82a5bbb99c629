"""A defect of a handler, which a scenario puts in and repairs while the bank's processes run."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = "BANK_DEFECT"
"""The environment variable with the path of the file that has the defect in it."""

RAISES, KILLS = "raises", "kills"
"""Contents of the file: each call of the handler raises, or kills its process."""


class Defect(Exception):
    """A release has a defect."""


def strike() -> None:
    """Raise or end the process, as the file requires; do nothing without such a file."""
    content = ""
    if path := os.environ.get(ENVIRONMENT):
        with suppress(FileNotFoundError):
            content = Path(path).read_text(encoding="ascii")
    if content == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if content:
        raise Defect("the book of credits has no such column")
