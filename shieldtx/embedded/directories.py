"""Directories of the servers: the caller's own, or temporary ones, removed even after a crash."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from shieldtx.embedded.child_process import Account
from shieldtx.embedded.requirements import EmbeddedError

_OWNER_LOCK: Final = "owner.lock"
_SWEEP_LOCK: Final = "sweep.lock"


class ServerDirectory:
    """The directory of one server.

    A temporary directory belongs to the process that made it. That process holds a lock on it,
    which the kernel releases at its death. The next temporary directory of the same user removes
    those without an owner.
    """

    def __init__(self, path: Path, *, lock: int | None = None) -> None:
        self.path = path
        # A bare descriptor: the garbage collector must not release the directory of a live server.
        self._lock = lock

    @classmethod
    def given(cls, path: Path) -> ServerDirectory:
        """Return the caller's directory, created if needed; `remove` leaves it alone."""
        path = path.expanduser().resolve()
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def temporary(cls, kind: str) -> ServerDirectory:
        """Create a directory that this process owns, and remove those whose owners are dead."""
        root = _own_root()
        with exclusive(root / _SWEEP_LOCK):
            for left in root.iterdir():
                if left.is_dir():
                    _remove_if_ownerless(left)
            path = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=root))
            path.chmod(0o755)  # a server may run as another account
            lock = _open_lock(path / _OWNER_LOCK)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock=lock)

    def remove(self) -> None:
        """Remove the directory if it is temporary; its server must have ended."""
        if self._lock is None:
            return
        with exclusive(self.path.parent / _SWEEP_LOCK):
            _remove_tree(self.path)
        os.close(self._lock)
        self._lock = None


@contextmanager
def exclusive(lock: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file; the kernel unlocks it when its holder dies. A wait calls `on_wait`."""
    descriptor = _open_lock(lock)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def can_enter(path: Path, account: Account) -> bool:
    """Return whether `account` may read and enter `path` and traverse all its parent folders."""
    return _permits(path, account, stat.S_IROTH | stat.S_IXOTH) and all(
        _permits(parent, account, stat.S_IXOTH) for parent in path.parents
    )


def _permits(path: Path, account: Account, wanted: int) -> bool:
    status = path.stat()
    shift = 6 if status.st_uid == account.uid else 3 if status.st_gid == account.gid else 0
    return (status.st_mode >> shift) & wanted == wanted


def _own_root() -> Path:
    """Return the folder of this user's temporary directories, which no other user can write to."""
    root = Path(tempfile.gettempdir()).resolve() / f"shieldtx-embedded-{os.geteuid()}"
    root.mkdir(exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise EmbeddedError(f"{root} belongs to another user: remove it, or set TMPDIR")
    root.chmod(0o755)
    return root


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _remove_if_ownerless(directory: Path) -> None:
    """Remove a directory that no live process holds; the caller holds the sweep lock.

    Directories get their owner under the same lock, so a directory without an owner's lock file
    belonged to a process that died in between.
    """
    try:
        descriptor = _open_lock(directory / _OWNER_LOCK)
    except FileNotFoundError:  # its owner has just removed it
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_tree(directory)
    except OSError:
        # Its owner holds it, or its dying server still writes: the next sweep removes it.
        return
    finally:
        os.close(descriptor)


def _remove_tree(directory: Path) -> None:
    """Remove everything, the owner's lock file last: an interrupted removal can be continued."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            _remove_folder(entry)
        elif entry.name != _OWNER_LOCK:
            entry.unlink(missing_ok=True)
    _remove_folder(directory)


def _remove_folder(folder: Path) -> None:
    """Remove a folder from which a server that ends may remove files at the same time."""
    while folder.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
