"""Small disks: file systems in memory that can be filled up while a server runs on them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from shieldtx.embedded.directories import ServerDirectory

_DEVICE: Final = "shieldtx-small-disk"
_MEGABYTE: Final = 1024 * 1024
_LOCK: Final = "owner.lock"  # held by the owner of a temporary directory


class SmallDisk:
    """A file system of `megabytes`, mounted at `path` while its `with` block runs.

    Every account may enter it. Disks whose owners were killed are unmounted by the next one.
    """

    def __init__(self, megabytes: int = 256) -> None:
        self._megabytes = megabytes
        self._directory: ServerDirectory | None = None
        self.path = Path()

    def __enter__(self) -> Self:
        unmount_ownerless()
        self._directory = ServerDirectory.temporary("disk")
        self.path = self._directory.path / "mounted"
        self.path.mkdir()
        try:
            _mount(self.path, self._megabytes)
        except BaseException:
            self._directory.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _unmount(self.path)
        if self._directory is not None:
            self._directory.remove()

    @property
    def free_bytes(self) -> int:
        """How much can still be written."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Take all space but `leave` bytes, as another program's file on the same disk would."""
        with self._filler.open("ab") as filler:
            while (free := self.free_bytes - leave) > 0:
                try:
                    os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), free)
                except OSError as error:
                    # Others write too: what they took in the meantime is measured again.
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)


def why_not() -> str | None:
    """Say why no disk can be mounted on this machine; None where one can."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    return _refusal()


def unmount_ownerless() -> None:
    """Unmount the disks that a killed run has left."""
    for partition in psutil.disk_partitions(all=True):
        if partition.device == _DEVICE and not _has_owner(Path(partition.mountpoint).parent):
            _unmount(Path(partition.mountpoint))


@cache
def _refusal() -> str | None:
    """Try it: root of a container may not mount either."""
    try:
        with SmallDisk(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"mounting a small disk is refused: {error.stderr.strip()}"


def _has_owner(directory: Path) -> bool:
    try:
        with (directory / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _mount(path: Path, megabytes: int) -> None:
    options = f"size={megabytes * _MEGABYTE},mode=0755"
    _run("mount", "-t", "tmpfs", "-o", options, _DEVICE, str(path))


def _unmount(path: Path) -> None:
    # Lazily: a server that is dying may still have files open.
    _run("umount", "--lazy", str(path))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
