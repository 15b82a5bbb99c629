"""The common part of the embedded servers: a directory, a port and one child process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.directories import ServerDirectory
from shieldtx.embedded.requirements import EmbeddedError

READY_S: Final = 60.0


class EmbeddedServer(ABC):
    """A server on 127.0.0.1 that ends with this process.

    Its data survives `stop` and `start`. `close`, or leaving the `with` block, removes it unless a
    directory was given. The port stays the same for the lifetime of the object.
    """

    name: ClassVar[str]
    """Name of the server in messages."""

    def __init__(self, directory: Path | None, *, port: int) -> None:
        self.port = port
        self._given = directory
        self._directory: ServerDirectory | None = None
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # The `with` block is not entered, so that only this code can close the server.
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Folder of the data and the log, available after the first start."""
        if self._directory is None:
            raise EmbeddedError(f"{self.name} has no directory yet: start it first")
        return self._directory.path

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it does not run."""
        return self._process.pid if self._process and self._process.is_running else None

    def require_running(self) -> None:
        """Raise ServerFailed, with the end of its log, if a started server has ended by itself."""
        if self._process is not None:
            self._process.require_running()

    def start(self) -> None:
        """Start the server, with new data the first time, and wait until it answers.

        Raises RequirementMissing or DownloadFailed if a requirement is missing, and ServerFailed,
        with the end of its log, when it does not answer.
        """
        if self.pid is not None:
            raise EmbeddedError(f"{self.name} already runs on port {self.port}")
        self._process = process = self._launch()
        try:
            process.await_ready(self._answers, within=READY_S)
        except BaseException:
            self.kill()
            raise

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down gracefully, by force if that takes too long, and keep its data."""

    @abstractmethod
    def kill(self) -> None:
        """End the server at once, and keep its data."""

    def restart(self) -> None:
        """Stop and start again with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop permanently; removes the data unless the directory was given."""
        if self._directory is None:
            return
        if self._given:
            self.stop()
        else:  # its data is removed: no need to shut down gracefully
            self.kill()
        self._directory.remove()
        self._directory = None

    @abstractmethod
    def _launch(self) -> ChildProcess:
        """Start the process, in `_open_directory`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server serves requests."""

    def _open_directory(self) -> Path:
        if self._directory is None:
            self._directory = (
                ServerDirectory.given(self._given)
                if self._given
                else ServerDirectory.temporary(self.name.split()[-1].lower())
            )
        return self._directory.path
