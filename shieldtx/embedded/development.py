"""Both servers for the development of services, with an owner and settings that stay the same."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shieldtx.embedded.free_ports import can_bind, free_port
from shieldtx.embedded.jars import fetch_kafka
from shieldtx.embedded.kafka import EmbeddedKafka
from shieldtx.embedded.postgres import EmbeddedPostgres
from shieldtx.embedded.postgres_cluster import check_programs
from shieldtx.embedded.requirements import EmbeddedError, require_java
from shieldtx.embedded.status_line import Progress

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_OF_POSTGRES: Final = frozenset({"postgres", "template0", "template1"})
_OWN_DATABASE: Final = "service"
_PORTS: Final = 65_536
_RELEASE_S: Final = 5.0
_POLL_S: Final = 0.1
_HEADER: Final = "# Written by `shieldtx dev`, which removes this file when it ends.\n"


class DevelopmentServers:
    """A PostgreSQL with databases and a Kafka, which end with this process."""

    def __init__(self, postgres: EmbeddedPostgres, kafka: EmbeddedKafka) -> None:
        self._postgres = postgres
        self._kafka = kafka

    def create_databases(self, names: Sequence[str]) -> dict[str, str]:
        """Create missing databases, and return the settings by the names of their variables.

        Without names there is one database, for SHIELDTX_DATABASE_URL. A database `orders` has the
        variable ORDERS_DATABASE_URL.
        """
        variables = {name: f"{name.upper()}_DATABASE_URL" for name in names}
        settings = {"SHIELDTX_KAFKA_BOOTSTRAP": self._kafka.bootstrap}
        for name, variable in (variables or {_OWN_DATABASE: "SHIELDTX_DATABASE_URL"}).items():
            if not self._postgres.has_database(name):
                self._postgres.create_database(name)
            settings[variable] = self._postgres.url(name)
        return settings

    def require_running(self) -> None:
        """Raise ServerFailed, with the end of its log, if a server has ended."""
        self._postgres.require_running()
        self._kafka.require_running()


def check_database_name(name: str) -> None:
    """Raise EmbeddedError for a name that is not fit for a database and a variable."""
    if not _NAME.fullmatch(name):
        raise EmbeddedError(
            f"{name!r} is not a name of at most 31 lower-case letters, digits and underscores that "
            "begins with a letter"
        )
    if name in _OF_POSTGRES:
        raise EmbeddedError(f"the database {name} is PostgreSQL's own: choose another name")


def prepare(progress: Progress) -> None:
    """Check what both servers need, and fetch Kafka if it is not cached.

    Raises RequirementMissing and DownloadFailed.
    """
    require_java()
    check_programs()
    fetch_kafka(progress=progress)


@contextmanager
def running_servers(data: Path | None) -> Iterator[DevelopmentServers]:
    """Run both servers within the block.

    With a folder `data`, it keeps the data, the ports and the password for the next time. Without,
    everything is removed at the end. Raises EmbeddedError, also if another process uses the folder.
    """
    if data is None:
        with EmbeddedPostgres(fsync=False) as postgres, EmbeddedKafka() as kafka:
            yield DevelopmentServers(postgres, kafka)
        return
    data = data.expanduser().resolve()
    data.mkdir(parents=True, exist_ok=True)
    with (
        _owned(data),
        EmbeddedPostgres(data / "postgres", port=_same_port(data / "postgres.port")) as postgres,
        EmbeddedKafka(data / "kafka", port=_same_port(data / "kafka.port")) as kafka,
    ):
        yield DevelopmentServers(postgres, kafka)


def check_env_file(path: Path) -> None:
    """Raise EmbeddedError for a file that may not be replaced: it is not of a killed process."""
    try:
        with path.open("r+", encoding="utf-8", errors="replace") as file:
            if not _lock(file.fileno()):
                raise EmbeddedError(
                    f"{path} has the settings of servers that are running: stop them, or name "
                    "another file"
                )
            if file.read(len(_HEADER)) != _HEADER:
                raise EmbeddedError(
                    f"{path} exists and is not a file of `shieldtx dev`: name another file"
                )
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise EmbeddedError(f"{path.parent} is not a folder: create it") from None


@contextmanager
def env_file(path: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Keep the settings in a file within the block, readable by this user alone.

    Raises EmbeddedError like `check_env_file`.
    """
    check_env_file(path)
    # Renamed when complete, so that a script can wait for the file and read it at once.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        _lock(descriptor)
        file.writelines([_HEADER, *lines_of(settings)])
        file.flush()
        part.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def lines_of(settings: Mapping[str, str]) -> list[str]:
    """Return a line for each setting, which a shell and the readers of `.env` files accept."""
    # No value needs quotes: addresses of 127.0.0.1, checked names, and a hexadecimal password.
    return [f"export {name}={value}\n" for name, value in settings.items()]


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Hold the folder; the kernel releases it when this process dies."""
    descriptor = os.open(folder / "owner.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if not _lock(descriptor):
            raise EmbeddedError(
                f"the servers of {folder} are running: stop their `shieldtx dev`, or choose "
                "another folder"
            )
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same_port(file: Path) -> int:
    """Return the port in a file, once it is free; a new one the first time."""
    try:
        text = file.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        port = free_port()
        file.write_text(f"{port}\n", encoding="ascii")
        return port
    if not text.isdecimal() or not 0 < (port := int(text)) < _PORTS:
        raise EmbeddedError(f"{file} has {text!r}, which is not a port: delete the file")
    # A server of a killed process may be ending.
    if not _wait(lambda: can_bind(port), seconds=_RELEASE_S):
        raise EmbeddedError(
            f"port {port} of {file} is in use by another program: stop it, or delete {file} for "
            "another port"
        )
    return port


def _wait(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
