"""Small disks: file systems in memory that a test can fill while a server uses them."""

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

    Every account may enter it. The next user unmounts disks whose owners were killed.
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
        """Return the free space in bytes."""
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
                    # Other processes write too, so the free space is measured again.
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Free the space."""
        self._filler.unlink(missing_ok=True)


def why_not() -> str | None:
    """Return why this machine cannot mount a disk; None where it can."""
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
    """Try to mount: root of a container may not mount either."""
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
    # Lazily: a dying server may still have open files.
    _run("umount", "--lazy", str(path))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
