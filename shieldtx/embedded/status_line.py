"""Progress as one line: overwritten on a terminal, only its first and last step elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

Progress = Callable[[str], None]

_ERASE_LINE: Final = "\r\x1b[K"  # ECMA-48


@contextmanager
def status_line(stream: TextIO | None = None) -> Iterator[Progress]:
    """Yield a function that shows the present step of a task on `stream` (default: standard error).

    On a terminal, a step replaces the one before, and the last one stays. Elsewhere, such as in the
    log of a CI, the first and the last step are written, each as a line of its own.
    """
    stream = stream or sys.stderr
    if stream is None:  # standard error is closed
        yield lambda _: None
        return
    line = _Overwritten(stream) if _is_terminal(stream) else _FirstAndLast(stream)
    try:
        yield line.show
    finally:
        line.end()


class _Overwritten:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_empty = True

    def show(self, step: str) -> None:
        # A step that wraps into a second line could not be erased.
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"{_ERASE_LINE}{step[:width]}")
        self._stream.flush()
        self._is_empty = False

    def end(self) -> None:
        if not self._is_empty:
            self._stream.write("\n")
            self._stream.flush()


class _FirstAndLast:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._first: str | None = None
        self._last: str | None = None

    def show(self, step: str) -> None:
        if self._first is None:
            self._first = step
            self._write(step)
        self._last = step

    def end(self) -> None:
        if self._last is not None and self._last != self._first:
            self._write(self._last)

    def _write(self, step: str) -> None:
        self._stream.write(f"{step}\n")
        self._stream.flush()


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"
