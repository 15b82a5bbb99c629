"""Progress in one line of a terminal, and in two lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shieldtx.embedded.status_line import status_line

STEPS = ("fetching 3 jars", "fetched 1 of 3 jars", "3 jars are there")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A pseudo-terminal: the side that reads what is shown, and the stream that is written to."""
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = os.openpty()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield reader, stream
    os.close(reader)


def read_lines(reader: int, count: int = 1) -> str:
    """Return what a terminal shows until the end of a number of lines."""
    shown = b""
    while shown.count(b"\n") < count:
        shown += os.read(reader, 1000)
    return shown.decode()


def test_on_a_terminal_each_step_replaces_the_one_before(
    terminal: tuple[int, io.TextIOWrapper],
) -> None:
    reader, stream = terminal
    with status_line(stream) as show:
        for step in STEPS:
            show(step)
    assert read_lines(reader) == "".join(f"\r\x1b[K{step}" for step in STEPS) + "\r\n"


def test_step_wider_than_the_terminal_is_cut(
    terminal: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    reader, stream = terminal
    with status_line(stream) as show:
        show("fetching 3 jars")
    assert read_lines(reader) == "\r\x1b[Kfetching \r\n"


def test_error_starts_on_a_line_of_its_own(terminal: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = terminal
    with contextlib.suppress(OSError), status_line(stream) as show:
        show("fetching 3 jars")
        raise OSError
    assert read_lines(reader).endswith("jars\r\n")


@pytest.mark.parametrize("colours", ["", "1"])
def test_elsewhere_only_the_first_and_the_last_step_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colours: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colours)
    with (tmp_path / "log").open("w") as log, status_line(log) as show:
        for step in STEPS:
            show(step)
    assert (tmp_path / "log").read_text() == f"{STEPS[0]}\n{STEPS[-1]}\n"


def test_terminal_without_escape_sequences_gets_two_lines(
    terminal: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    reader, stream = terminal
    with status_line(stream) as show:
        for step in STEPS:
            show(step)
    assert read_lines(reader, 2) == f"{STEPS[0]}\r\n{STEPS[-1]}\r\n"


def test_task_without_steps_writes_nothing() -> None:
    stream = io.StringIO()
    with status_line(stream):
        pass
    assert stream.getvalue() == ""


def test_single_step_is_written_once() -> None:
    stream = io.StringIO()
    with status_line(stream) as show:
        show(STEPS[0])
    assert stream.getvalue() == f"{STEPS[0]}\n"


def test_closed_standard_error_is_tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with status_line() as show:
        show(STEPS[0])
