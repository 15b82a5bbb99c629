"""The demo as a process: its output, and every process that it starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from examples.retail.stage import PROJECT

PATIENCE_S = 1200.0
"""For a demo of a few hundred baskets with Spark, on a busy machine."""


class Demo:
    """A running demo: its output so far, and every process that it has started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._popen = subprocess.Popen(
            [sys.executable, "-u", "-m", "examples.retail", "--folder", folder, *arguments],
            cwd=PROJECT,
            env={**os.environ, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.family: dict[int, psutil.Process] = {}

    @property
    def said(self) -> str:
        return "\n".join(self._lines)

    def await_words(self, pattern: str) -> str:
        """Wait until the output matches, and collect new processes meanwhile; return the output."""
        with self._changed:
            deadline = time.monotonic() + PATIENCE_S
            while not (found := re.search(pattern, self.said)):
                self.meet()
                if self._popen.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"it never said {pattern!r}:\n{self.said}")
                self._changed.wait(0.2)
        self.meet()
        return found.group()

    def finish(self) -> int:
        """Wait until the demo exits; return its exit status."""
        deadline = time.monotonic() + PATIENCE_S
        while self._popen.poll() is None:
            self.meet()
            if time.monotonic() > deadline:
                pytest.fail(f"it does not end:\n{self.said}")
            time.sleep(0.1)
        self._reader.join()
        return self._popen.returncode

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def survivors(self) -> list[str]:
        """Return the demo's processes that still run."""
        return [
            f"{pid} {command}"
            for pid, process in self.family.items()
            if (command := command_of(process))
        ]

    def end(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()

    def meet(self) -> None:
        """Record which processes the demo has started by now."""
        try:
            for process in psutil.Process(self._popen.pid).children(recursive=True):
                self.family.setdefault(process.pid, process)
        except psutil.NoSuchProcess:
            return

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process; empty when the process has ended."""
    try:
        return " ".join(process.cmdline()) if process.is_running() else ""
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    running = Demo(folder, *arguments)
    try:
        yield running
    finally:
        running.end()
