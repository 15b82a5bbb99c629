"""The processes of the banks: the command line in forks of a process that has imported it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from shieldtx.cli import main
from shieldtx.embedded.child_process import PR_SET_PDEATHSIG, ChildProcess
from tests.support.paused_process import frozen
from tests.support.project import ROOT

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [__name__, "kafka", "shieldtx.brokers.kafka.broker", "shieldtx.cli.program"]
)

# Python reads the status of a fork's child from a pipe, which contains it once. Of two threads that
# read it, the second gets 255. Each start of a child reads the status of all others.
_STATUS = threading.Lock()
READY_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.02


class Worker:
    """A process of a bank: a relay, a consumer, or its clients."""

    def __init__(self, name: str, log: Path, process: Any) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    def command(cls, words: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Worker:
        """Run `shieldtx` with these arguments."""
        if "LD_PRELOAD" in environment:
            # A preloaded library is loaded with its program; a fork would not have it.
            return cls(" ".join(words), log, Executed.start(words, environment, log))
        return cls._start(" ".join(words), _run_command, (tuple(words),), environment, log)

    @classmethod
    def function(
        cls,
        name: str,
        function: Callable[..., None],
        *arguments: Any,
        environment: Mapping[str, str],
        log: Path,
    ) -> Worker:
        """Run a function of the tests."""
        return cls._start(name, function, arguments, environment, log)

    @classmethod
    def _start(
        cls,
        name: str,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        environment: Mapping[str, str],
        log: Path,
    ) -> Worker:
        process = _FORKS.Process(
            target=_become, args=(function, arguments, dict(environment), str(log)), name=name
        )
        with _STATUS:
            process.start()
        return cls(name, log, process)

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._process.pid)

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        with _STATUS:
            return bool(self._process.is_alive())

    @property
    def exit_status(self) -> int | None:
        """Return the exit status as multiprocessing does: minus the number of a fatal signal."""
        with _STATUS:
            status: int | None = self._process.exitcode
        return status

    def await_ready(self) -> Worker:
        """Wait until it reports that it is ready; raises RuntimeError when it ends before."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not self.is_ready():
            if not self.is_running and not self.is_ready():
                raise RuntimeError(f"{self.name} ended: {self.exit_status}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready\n{self.tail()}")
            time.sleep(_LOOK_EVERY_S)
        return self

    def is_ready(self) -> bool:
        """Return whether it has reported that it is ready."""
        return re.search(r"^ready: ", self.log.read_text(), re.MULTILINE) is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process as a crash would."""
        self.send(signal.SIGKILL)
        self.join()

    def terminate(self, within: float = 30.0) -> int | None:
        """Ask for a graceful end, and kill the process after a timeout. Return its exit status."""
        self.send(signal.SIGTERM)
        self.join(within)
        self.kill()
        return self.exit_status

    def join(self, within: float | None = None) -> bool:
        """Wait for the end of the process; return whether it has ended."""
        deadline = None if within is None else time.monotonic() + within
        while self.is_running:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def finish(self, within: float = 60.0) -> None:
        """Wait until the process ends successfully; raises RuntimeError otherwise."""
        if not self.join(within) or self.exit_status != 0:
            raise RuntimeError(f"{self.name} ended: {self.exit_status}\n{self.tail()}")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process for a while, without notice."""
        with frozen(self.pid) if self.is_running else nullcontext():
            yield

    def has_logged(self, pattern: str) -> bool:
        """Return whether the process has printed this."""
        return re.search(pattern, self.log.read_text(errors="replace")) is not None

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Executed:
    """A separate program with the interface of a process of multiprocessing."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self.pid = child.pid

    @classmethod
    def start(cls, words: Sequence[str], environment: Mapping[str, str], log: Path) -> Executed:
        """Start `shieldtx` in a Python that inherits nothing."""
        command = [sys.executable, "-c", "from shieldtx.cli import main; main()", *words]
        child = ChildProcess.start(
            command, name=" ".join(words), log=log, environment=environment, directory=ROOT
        )
        return cls(child)

    @property
    def exitcode(self) -> int | None:
        """Return minus the number of the signal that ended it, None while it runs."""
        return self._child.exit_status

    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self._child.is_running


def _become(
    function: Callable[..., None], arguments: tuple[Any, ...], environment: dict[str, str], log: str
) -> None:
    # The process that forks them ends with its own parent, in any case.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(output, number)
    function(*arguments)


def _run_command(words: tuple[str, ...]) -> None:
    sys.argv = ["shieldtx", *words]
    main()
