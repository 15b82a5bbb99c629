"""The processes of the two services, as an operator would start them."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from examples.retail.stage import Stage
from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.requirements import ServerFailed

SHIELDTX = Path(sys.executable).with_name("shieldtx")
"""The command line, which pip installs next to the interpreter."""
STOP_S = 20.0
READY_S = 60.0
TASK_S = 120.0
COMMAND_S = 600.0


class Fleet:
    """Starts, kills and stops processes by name; none of them outlives this process.

    `say` gets a message about each step.
    """

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._say = say
        self._logs = stage.folder / "logs"
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir(parents=True)
        self._running: dict[str, ChildProcess] = {}
        self._of_shieldtx: set[str] = set()

    def shieldtx(self, name: str, service: str, *arguments: str) -> ChildProcess:
        """Start the command line of shieldtx for a service.

        PostgreSQL lists its connections under the process's name.
        """
        app = f"examples.retail.{service}:shield"
        self._say(f"{service}$ shieldtx {' '.join(arguments)}")
        self._of_shieldtx.add(name)
        environment = {**self._stage.environment(service), "PGAPPNAME": name}
        return self._start(name, environment, SHIELDTX, "--app", app, *arguments)

    def module(self, name: str, service: str, module: str, *arguments: str) -> ChildProcess:
        """Start a module of this package in the environment of a service."""
        self._say(f"{service}$ python -m {module} {' '.join(arguments)}")
        environment = self._stage.environment(service)
        return self._start(name, environment, sys.executable, "-m", module, *arguments)

    def command(self, name: str, environment: Mapping[str, str], *arguments: str) -> ChildProcess:
        """Run the command line of shieldtx until it ends, whatever its exit status.

        It has its own log. Raises ServerFailed if it does not end.
        """
        self._say(f"$ shieldtx {' '.join(arguments)}")
        self._log(name).unlink(missing_ok=True)
        process = self._start(name, environment, SHIELDTX, *arguments)
        if not process.wait(COMMAND_S):
            raise ServerFailed(f"{name} does not end; its log is {process.log}")
        return self._running.pop(name)

    def finish(self, *names: str) -> None:
        """Wait until these tasks have ended successfully; raises ServerFailed with their log."""
        for name in names:
            self._running.pop(name).finish(within=TASK_S)

    def pid(self, name: str) -> int:
        """Return the process id of a running process."""
        return self._running[name].pid

    def kill(self, name: str) -> int:
        """End a process with SIGKILL and return its process id."""
        process = self._running.pop(name)
        process.kill()
        return process.pid

    def check(self) -> None:
        """Raise ServerFailed, with the end of its log, if a process has failed by itself."""
        for process in self._running.values():
            if process.exit_status:
                raise ServerFailed(
                    f"{process.name} ended with exit status {process.exit_status}; the end of its "
                    f"log {process.log}:\n{process.log_tail()}"
                )

    def stop(self) -> None:
        """Stop all processes gracefully; raises ServerFailed if one fails.

        Until a worker is ready, SIGTERM may end it like any process, with another exit status.
        """
        for name in self._of_shieldtx & self._running.keys():
            worker = self._running[name]
            worker.await_ready(partial(_is_ready, worker), within=READY_S)
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for name in list(self._running):
            self._running.pop(name).finish(within=STOP_S)

    def kill_all(self) -> None:
        """End all processes at once."""
        for process in self._running.values():
            process.send_signal(signal.SIGKILL)
        for name in list(self._running):
            self.kill(name)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"

    def _start(
        self, name: str, environment: Mapping[str, str], *command: str | Path
    ) -> ChildProcess:
        process = ChildProcess.start(
            command,
            name=name,
            log=self._log(name),
            environment=environment,
            directory=self._stage.folder,
        )
        self._running[name] = process
        return process


def _is_ready(worker: ChildProcess) -> bool:
    """Whether a worker has announced itself: an earlier one has the same log."""
    announced = f"(pid {worker.pid})"
    lines = worker.log.read_text(errors="replace").splitlines()
    return any(line.startswith("ready: ") and line.endswith(announced) for line in lines)
