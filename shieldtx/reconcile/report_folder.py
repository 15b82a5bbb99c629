"""Creates, empties and locks the folder of a report, for one run at a time."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Final

from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.findings import OutputFolder
from shieldtx.reconcile.request import ReconcileRequest

_MODE: Final = 0o750
"""Rows contain names of customers and orders. Access: this account, and its group unless the umask
denies it."""
_FIRST_LINE: Final = 500
_fcntl: Final[Any] = import_module("fcntl") if find_spec("fcntl") else None


@contextmanager
def locked(folder: OutputFolder, request: ReconcileRequest) -> Iterator[BinaryIO]:
    """Create the folder, lock and empty it for a run; yield its log, to which the run appends.

    The lock is on the log, and the job inherits it. If this process is killed, the kernel releases
    the lock after the job and its Java process have ended: both write to the folder until then. A
    file system without locks provides none. Raises ConfigurationError if another run uses the
    folder, if it has files that no run left there, or if it is not writable.
    """
    with _telling(folder):
        folder.path.mkdir(mode=_MODE, parents=True, exist_ok=True)
        if not folder.log.exists() and (folder.rows.exists() or folder.summary.exists()):
            raise ConfigurationError(
                f"{folder.path} holds a `rows` or `summary` that no reconciliation left there: "
                "choose another folder for the report"
            )
        log = _opened(folder.log)
    with log:
        _lock(log, folder)
        try:
            with _telling(folder):
                _empty(folder)
                log.truncate(0)
                log.write(f"{_holder(request)}\n".encode())
                log.flush()
            yield log
        finally:
            _unlock(log)


def new_folder(parent: Path) -> Path:
    """Create a folder in `parent` for one run, named by date and time; return its path.

    Two runs in the same second get different folders. Raises ConfigurationError.
    """
    name = f"{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    folders = (parent.expanduser() / each for each in names)
    return next(folder for folder in folders if _is_made(folder))


def _is_made(folder: Path) -> bool:
    """Create a folder; return whether this process created it."""
    with _telling(OutputFolder(path=folder)):
        try:
            folder.mkdir(mode=_MODE, parents=True)
        except FileExistsError:
            if not folder.parent.is_dir():
                raise
            return False
    return True


@contextmanager
def _telling(folder: OutputFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{folder.path} cannot take the report: {error}") from error


def _opened(log: Path) -> BinaryIO:
    """Open the log without changing the text of another run; never through a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(log, flags, 0o666), "a+b")


def _lock(log: BinaryIO, folder: OutputFolder) -> None:
    if _fcntl is None:
        return
    try:
        _fcntl.flock(log, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        log.seek(0)
        first = log.readline(_FIRST_LINE).decode("utf-8", errors="replace").strip()
        raise ConfigurationError(
            f"{folder.path} is in use by {first or 'another run'}: wait until that run and its "
            "Java process have ended, or give each run a folder of its own with --out"
        ) from None
    except OSError:
        # A file system without locks. The launcher still checks that the findings belong to this
        # run.
        return


def _unlock(log: BinaryIO) -> None:
    """Release the lock, also if a process that is about to end has inherited it."""
    if _fcntl is not None:
        with suppress(OSError):
            _fcntl.flock(log, _fcntl.LOCK_UN)


def _holder(request: ReconcileRequest) -> str:
    """Return a description of the run that uses the folder: the first line of its log."""
    run = f"run {request.run_id}" if request.run_id else "a run that is not stored"
    services = ", ".join(service.name for service in request.services)
    now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z}"
    return f"{run} of {services} (process {os.getpid()} on {socket.gethostname()}, since {now})"


def _empty(folder: OutputFolder) -> None:
    """Delete an earlier run's results, which could be mistaken for this run's: findings first."""
    for file in (folder.findings, folder.page):
        file.unlink(missing_ok=True)
    for directory in (folder.rows, folder.summary):
        shutil.rmtree(directory, ignore_errors=True)
