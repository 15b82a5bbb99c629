"""A spinner animates on a terminal, and writes no frame into a file, whatever the environment."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SPIN = """
import time
from shieldtx.cli.output import showing_progress
with showing_progress() as say:
    say("judging")
    time.sleep(0.5)
"""
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def spin(stderr: int) -> None:
    """Show progress for a while, as a service's program would."""
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm", "PYTHONUTF8": "1"}
    subprocess.run([sys.executable, "-c", SPIN], stderr=stderr, env=environment, check=True)


@pytest.fixture
def terminal():
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def test_a_file_gets_no_frames_even_with_forced_colours(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        spin(log.fileno())
    assert (tmp_path / "log").read_bytes() == b""


def test_terminal_shows_the_current_step(terminal) -> None:
    ours, theirs = terminal
    spin(theirs)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    assert "judging" in shown
    assert any(frame in shown for frame in FRAMES)
