"""A real PgBouncer in transaction mode, in front of the tests' PostgreSQL."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.free_ports import HOST, free_port
from shieldtx.embedded.postgres_cluster import unprivileged_account

MISSING: Final = "pgbouncer is not installed (Debian, Ubuntu: apt-get install pgbouncer)"

# Debian installs PgBouncer into folders that only root's PATH has.
_PLACES: Final = "/usr/sbin:/usr/local/sbin"

_CONFIGURATION: Final = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = {host}
listen_port = {own_port}
unix_socket_dir =
auth_type = plain
auth_file = {users}
pool_mode = transaction
default_pool_size = 4
"""


def installed() -> str | None:
    """Return the path of the program; None where it is not installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_PLACES)


@contextmanager
def pooler_of(postgres: EmbeddedPostgres, folder: Path) -> Iterator[int]:
    """Start a PgBouncer and return its port: four server connections for any number of clients."""
    program = installed()
    assert program is not None, MISSING
    own_port = free_port()
    users = folder / "users.txt"
    users.write_text(f'"{postgres.user}" "{postgres.password}"\n')
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        _CONFIGURATION.format(host=HOST, port=postgres.port, own_port=own_port, users=users)
    )
    account = unprivileged_account()  # it refuses to run as root
    if account is not None:
        for path in (folder, users, settings):
            shutil.chown(path, account.uid, account.gid)
        _let_pass(folder)
    process = ChildProcess.start(
        [program, settings], name="PgBouncer", log=folder / "pgbouncer.log", account=account
    )
    try:
        process.await_ready(lambda: _answers(own_port), within=20)
        yield own_port
    finally:
        process.kill()


def through(url: str, port: int) -> str:
    """Return a database's URL through a pooler."""
    return make_url(url).set(port=port).render_as_string(hide_password=False)


def _let_pass(folder: Path) -> None:
    """Let another account enter the folders that pytest created for its own account."""
    for parent in folder.parents:
        if parent.owner() != "root" or parent.stat().st_mode & 0o005:
            continue
        parent.chmod(parent.stat().st_mode | 0o011)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
