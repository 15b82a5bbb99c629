"""Tests in a forked process of the run: it has all modules, and its changes die with it."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

Work = Callable[["Progress"], None]


class Progress:
    """The messages of a forked process to the process that waits for it."""

    def __init__(self, to: Connection) -> None:
        self._to = to

    def send(self, message: object) -> None:
        """Send any object that can be pickled."""
        self._to.send_bytes(pickle.dumps(message))


@dataclass(frozen=True, slots=True)
class Starting:
    """A test starts, with this limit in seconds."""

    nodeid: str
    within_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A test has failed."""

    nodeid: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The work itself has failed, not a test."""

    traceback: str


@dataclass(slots=True)
class Child:
    """A forked process, read by its parent."""

    pid: int
    messages: Connection
    deadline: float
    received: list[Any] = field(default_factory=list)
    timed_out: bool = False

    def read(self) -> bool:
        """Read what has arrived; return False after the process has ended."""
        try:
            while self.messages.poll():
                message = pickle.loads(self.messages.recv_bytes())  # noqa: S301  of a child
                self.received.append(message)
                if isinstance(message, Starting):
                    self.deadline = time.monotonic() + message.within_s
        except EOFError:
            return False
        return True

    def raise_if_broken(self) -> None:
        """Raise RuntimeError if the work itself has failed, not a test."""
        if broken := [each for each in self.received if isinstance(each, Broken)]:
            raise RuntimeError(broken[0].traceback)


def fork(work: Work, *, within_s: float) -> Child:
    """Run work in a forked process, which writes nothing to the terminal."""
    receiver, sender = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        sender.close()
        return Child(pid, receiver, time.monotonic() + within_s)
    status = 1
    try:
        receiver.close()
        gc.freeze()
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        progress = Progress(sender)
        try:
            work(progress)
            status = 0
        except BaseException:  # noqa: BLE001  the parent raises it
            progress.send(Broken(traceback.format_exc()))
    finally:
        os._exit(status)


def wait_for_any(children: Sequence[Child]) -> Iterator[Child]:
    """Read what children send, and yield those that have ended or exceeded their limit."""
    soonest = min(child.deadline for child in children) - time.monotonic()
    ready, _, _ = select.select([c.messages for c in children], [], [], max(0.0, soonest))
    for child in children:
        if child.messages in ready and not child.read():
            _end(child)
            yield child
        elif time.monotonic() > child.deadline:
            child.timed_out = True
            _end(child)
            yield child


def _end(child: Child) -> None:
    # With the child processes of an interrupted test.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    child.messages.close()


def run_in_turn(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    progress: Progress,
    seconds: Callable[[pytest.Item], float],
    around: Callable[[pytest.Item], Any],
    *,
    until_failure: bool,
) -> bool:
    """Run tests one after the other, and send each start and failure; return whether one failed.

    With `until_failure`, no test runs after the first failure.
    """
    for position, item in enumerate(items):
        following = items[position + 1] if position + 1 < len(items) else None
        before = session.testsfailed
        progress.send(Starting(item.nodeid, seconds(item)))
        with around(item):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed > before:
            progress.send(Failed(item.nodeid))
            if until_failure:
                break
    return session.testsfailed > 0


@contextmanager
def alone(_: pytest.Item) -> Iterator[None]:
    """Do nothing around a test."""
    yield
