"""Child processes: started, watched and stopped by this process, and killed when it dies."""

from __future__ import annotations

import ctypes
import os
import pwd
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shieldtx.embedded.requirements import ServerFailed

PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_POLL_S: Final = 0.02
_KILL_S: Final = 10.0
_TAIL_BYTES: Final = 16_384

_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The system account that a process runs as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def named(cls, name: str) -> Account:
        """Return the account with a name; raises KeyError if the system has none."""
        entry = pwd.getpwnam(name)
        return cls(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


class ChildProcess:
    """One started process with its output in a log file.

    The kernel kills it when this process dies in any way. A separate thread starts it and waits for
    it, because the kernel ties the death signal to the thread that forked.
    """

    def __init__(self, name: str, log: Path, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.log = log
        self.pid = popen.pid
        self._popen = popen
        self._reaping = threading.Lock()
        self._ended = threading.Event()

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        *,
        name: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        account: Account | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> ChildProcess:
        """Start `command`; its output is appended to `log`.

        The process gets its own session, so that Ctrl-C in the terminal reaches only its parent.
        `environment` and `directory` default to those of this process. Raises ServerFailed when the
        command cannot be executed.
        """
        started = threading.Event()
        born: list[ChildProcess] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with log.open("ab") as output:
                    popen = subprocess.Popen(  # noqa: S603 - commands of this package's callers
                        [str(word) for word in command],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        cwd=directory,
                        start_new_session=True,
                        # Runs after the change of account, which would clear the death signal.
                        preexec_fn=die_with_parent(death_signal),  # noqa: PLW1509 - see there
                        user=account.uid if account else None,
                        group=account.gid if account else None,
                        extra_groups=[] if account else None,
                    )
                born.append(cls(name, log, popen))
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                errors.append(error)
            finally:
                started.set()
            if born:
                born[0]._reap()  # noqa: SLF001 - this class's own

        threading.Thread(target=run, name=f"shieldtx {name}", daemon=True).start()
        started.wait()
        if errors:
            words = shlex.join(str(word) for word in command[:1])
            raise ServerFailed(f"{name} cannot be started ({words}): {errors[0]}") from errors[0]
        return born[0]

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return not self._ended.is_set()

    @property
    def exit_status(self) -> int | None:
        """The exit status; the negative number of a signal that ended it; None while it runs."""
        return self._popen.returncode if self._ended.is_set() else None

    def require_running(self) -> None:
        """Raise ServerFailed if the process has ended."""
        if not self.is_running:
            raise ServerFailed(self._report(f"has ended: it {self._ending()}"))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the process has ended, at most `timeout` seconds; return whether it has."""
        return self._ended.wait(timeout)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with self._reaping:  # its pid is not reused before it is reaped
            if self._popen.returncode is None:
                os.kill(self.pid, number)

    def stop(
        self, signals: Sequence[signal.Signals] = (signal.SIGTERM,), *, patience: float = 5.0
    ) -> None:
        """Send each of `signals` with `patience` seconds after it, SIGKILL at the end."""
        for number in signals:
            self.send_signal(number)
            if self.wait(patience):
                return
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; raises ServerFailed if the kernel cannot end it."""
        self.send_signal(signal.SIGKILL)
        if not self.wait(_KILL_S):
            raise ServerFailed(
                f"{self.name} (pid {self.pid}) still runs {_KILL_S:.0f} s after SIGKILL"
            )

    def await_ready(self, is_ready: Callable[[], bool], *, within: float) -> None:
        """Return once `is_ready()`; raises ServerFailed after `within` seconds or when it ends."""
        deadline = time.monotonic() + within
        while not is_ready():
            if self.wait(_POLL_S):
                raise ServerFailed(self._report(f"{self._ending()} before it was ready"))
            if time.monotonic() > deadline:
                raise ServerFailed(self._report(f"was not ready within {within:.0f} s"))

    def finish(self, *, within: float) -> None:
        """Wait for a successful end; raises ServerFailed after `within` seconds or on failure."""
        try:
            if not self.wait(within):
                raise ServerFailed(self._report(f"did not finish within {within:.0f} s"))
        finally:
            self.kill()
        if self._popen.returncode != 0:
            raise ServerFailed(self._report(self._ending()))

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        return log_tail(self.log, lines)

    def _reap(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            self._popen.wait()
        self._ended.set()

    def _ending(self) -> str:
        status = self._popen.returncode
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"

    def _report(self, problem: str) -> str:
        tail = self.log_tail() or "(it wrote nothing)"
        return f"{self.name} {problem}; the end of its log {self.log}:\n{tail}"


def log_tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log file; "" if the file does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    """Return the function that a forked child runs before its exec.

    Between fork and exec, only one C call and one comparison run, and all they need is looked up
    here, before the fork: other threads' locks cannot block them.
    """
    parent = os.getpid()
    prctl, getppid, leave = _prctl, os.getppid, os._exit
    number = int(death_signal)

    def ask_kernel() -> None:
        # The second condition covers a parent that died before the first call.
        if prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0 or getppid() != parent:
            leave(127)

    return ask_kernel
