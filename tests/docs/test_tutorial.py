"""The tutorial, followed to the letter: its files, its commands, and what they print.

Only what is installed and which ports are free is this machine's own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from shieldtx.embedded.child_process import die_with_parent
from shieldtx.embedded.free_ports import free_port
from tests.docs.pages import DOCS

PAGE = (DOCS / "tutorial.md").read_text()
_BLOCK = re.compile(r"(?:^<!-- ([^\n]+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWER_S = 60
PORTS = ("8001", "8002")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A block of the page, with the comment before it."""

    note: str
    language: str
    text: str


def blocks() -> list[Block]:
    """Return the blocks of the page, on ports of this machine."""
    page = PAGE
    for port in PORTS:
        page = page.replace(port, str(free_port()))
    return [Block(note=note, language=kind, text=text) for note, kind, text in _BLOCK.findall(page)]


@dataclass(kw_only=True)
class Terminals:
    """The shells of a reader, in one folder."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: str) -> str:
        """Run a block, and return what it prints; fails the test when it fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            check=False,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def show(self, command: str, expected: str) -> None:
        """Run a block until it prints this: what a service answers follows a moment later."""
        end = time.monotonic() + ANSWER_S
        while (printed := self.run(command).strip()) != expected.strip():
            assert time.monotonic() < end, f"{command}\nprints {printed}\nnot {expected}"
            time.sleep(0.2)

    @contextmanager
    def background(self, command: str) -> Iterator[None]:
        """Run a block in a terminal of its own, and end it as Ctrl-C does."""
        log = self.folder / "terminals.log"
        with log.open("a") as opened:
            process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self.environment,
                stdout=opened,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # SIGTERM runs the trap of the shell, which ends what the shell started.
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509  it is made for this
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


@pytest.fixture
def terminals(tmp_path: Path) -> Terminals:
    """Shells in which this project is installed; the cache of downloads is this machine's."""
    binaries = Path(sys.executable).parent
    kept = {"SHIELDTX_CACHE", "SHIELDTX_MAVEN_REPOSITORY"}
    environment = {
        k: v for k, v in os.environ.items() if k in kept or not k.startswith("SHIELDTX_")
    }
    environment["PATH"] = f"{binaries}:{environment['PATH']}"
    return Terminals(folder=tmp_path, environment=environment)


def await_file(path: Path) -> None:
    """Wait until a process has written a file."""
    end = time.monotonic() + ANSWER_S
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} was not written"
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_tutorial_works_to_the_letter(terminals: Terminals) -> None:
    install, *steps = blocks()
    assert "pip install" in install.text
    with ExitStack() as background:
        for step, after in pairwise([*steps, None]):
            assert step is not None
            follow(step, after, terminals, background)


def follow(step: Block, after: Block | None, terminals: Terminals, background: ExitStack) -> None:
    """Follow a step of the page; the block after it may be what it prints."""
    if step.note.startswith("file: "):
        (terminals.folder / step.note.removeprefix("file: ")).write_text(step.text)
    elif step.note == "background":
        background.enter_context(terminals.background(step.text))
        await_file(terminals.folder / "servers.env")
    elif step.language == "bash" and not step.note.startswith("not run"):
        if after is not None and after.language == "json":
            expect(step.text, after.text, terminals)
        else:
            terminals.run(step.text)


def expect(command: str, answer: str, terminals: Terminals) -> None:
    """Check the answer of a block; one that writes is run once."""
    if " -d " in command:
        assert terminals.run(command).strip() == answer.strip()
    else:
        terminals.show(command, answer)
