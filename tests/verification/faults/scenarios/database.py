"""F4 to F6: faults of PostgreSQL while all processes use it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.verification.faults.banks import Banks, NotInTime
from tests.verification.faults.disks import SmallDisk, why_not
from tests.verification.faults.journal import Operations
from tests.verification.faults.matrix import Fault
from tests.verification.faults.survivors import expect_all_to_end_in_order
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import World, own_postgres

MEGABYTES = 192
"""Size of the small disk."""

STOPS = 10
RECOVERED = "database system was not properly shut down; automatic recovery in progress"
TERMINATED = "terminating connection due to administrator command"
REINITIALIZED = "all server processes terminated; reinitializing"

ROLES = ("clients", "relay", "consume")
ROUNDS = 6
"""How often a backend of each role is terminated."""
CAUGHT_WITHIN_S = 20.0


def stopped_immediately(banks: Banks) -> None:
    """PostgreSQL crashes ten times while all processes use it, and restarts."""
    banks.open()
    for _ in range(STOPS):
        clients = banks.begin_writing(40, pause=0.02)
        _until_all_work(banks)
        banks.postgres.kill()
        banks.postgres.start()
        clients.finish()
    banks.write(20)
    banks.expect(
        banks.count_in_server_log(RECOVERED) >= STOPS,
        "PostgreSQL recovered from every stop",
    )


def backends_lost(banks: Banks) -> None:
    """Backends are terminated, and then killed, in the middle of their work."""
    for side in banks.sides:
        side.launch("relay", PGAPPNAME="relay")
        side.consume(PGAPPNAME="consume")
    for _ in range(ROUNDS):
        clients = _named_clients(banks)
        for role in ROLES:
            _terminate(banks, role)
        clients.finish()
    banks.expect(
        banks.count_in_server_log(TERMINATED) >= ROUNDS * len(ROLES),
        "backends were terminated",
    )
    for role in ROLES:
        clients = _named_clients(banks)
        _kill(banks, role)
        clients.finish()
    banks.write(20)
    banks.expect(
        banks.count_in_server_log(REINITIALIZED) >= len(ROLES),
        "the server took all other backends down with each that was killed",
    )


def postgres_on_small_disk(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Start a PostgreSQL on a disk with room for its databases and little more."""
    disk = open_.enter_context(SmallDisk(MEGABYTES))
    server = own_postgres(
        world, open_, disk.path / "postgres", min_wal_size="32MB", max_wal_size="32MB"
    )
    return {"disk": disk, **server}


def disk_full(banks: Banks) -> None:
    """PostgreSQL finds no space, first for its tables and then for its write-ahead log."""
    disk = banks.disk
    assert disk is not None
    banks.open()
    banks.write(20)
    disk.fill()
    # Some space is left in the existing files of tables.
    clients = banks.begin_writing(200, pause=0.02)
    banks.until(
        lambda: _refused(banks) >= 10 and banks.logged("could not extend file"),
        "clients and others find no space",
        within=60,
    )
    clients.finish()
    _give_space_back(banks, disk)
    banks.drain()
    disk.fill()
    clients = banks.begin_writing(40, pause=0.02)
    _fill_write_ahead_log(banks)
    clients.finish()
    _give_space_back(banks, disk)
    banks.write(20)
    banks.expect(banks.count_in_server_log(RECOVERED), "PostgreSQL crashed for want of space")


def _give_space_back(banks: Banks, disk: SmallDisk) -> None:
    """Make room; PostgreSQL has to be restarted only if it has stopped."""
    disk.free()
    banks.until(
        lambda: banks.postgres.pid is None or banks.upstream.one("SELECT true"),
        "PostgreSQL goes on, recovers or has given up",
        within=60,
    )
    if banks.postgres.pid is None:
        banks.postgres.start()


def _fill_write_ahead_log(banks: Banks) -> None:
    """Write temporary data until PostgreSQL cannot write its log either."""
    message = "SELECT pg_logical_emit_message(false, 'nobody', repeat('x', 1000000))"
    for _ in range(MEGABYTES):
        try:
            banks.upstream.one(message)
        except DBAPIError:
            return
    raise AssertionError("there is no end to the write-ahead log")


def _refused(banks: Banks) -> int:
    """Return how many operations were surely not committed."""
    return Operations.read(banks.journal).counts()["fail"]


def _named_clients(banks: Banks) -> Worker:
    return banks.begin_writing(30, pause=0.05, environment={"PGAPPNAME": ROLES[0]})


def _terminate(banks: Banks, role: str) -> None:
    def terminate(pid: int) -> bool:
        return bool(banks.upstream.one("SELECT pg_terminate_backend(:pid)", pid=pid))

    _strike_at_work(banks, role, terminate)


def _kill(banks: Banks, role: str) -> None:
    seen = banks.count_in_server_log(REINITIALIZED)
    _strike_at_work(banks, role, _kill_backend)
    banks.until(
        lambda: banks.count_in_server_log(REINITIALIZED) > seen,
        f"the server notices the death of a backend of the {role}",
    )
    banks.until(lambda: banks.upstream.one("SELECT true"), "the server answers again", within=60)


def _kill_backend(pid: int) -> bool:
    try:
        # Not another process that has received the number since.
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres: "):
            return False
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def _strike_at_work(banks: Banks, role: str, strike: Callable[[int], bool]) -> None:
    """Strike a backend of these processes while it executes a statement."""
    query = text(
        "SELECT pid FROM pg_stat_activity WHERE application_name = :role AND state <> 'idle' "
        "AND datname = ANY(:databases) ORDER BY random() LIMIT 1"
    )
    asked = {"role": role, "databases": [side.database for side in banks.sides]}
    deadline = time.monotonic() + CAUGHT_WITHIN_S
    with banks.upstream.engine.connect() as connection:
        watching = connection.execution_options(isolation_level="AUTOCOMMIT")
        while time.monotonic() < deadline:
            pid = watching.scalars(query, asked).one_or_none()
            if pid is not None and strike(pid):
                return
            # They are active for a millisecond or two.
            time.sleep(0.001)
    raise NotInTime(f"no backend of the {role} does anything")


def _until_all_work(banks: Banks) -> None:
    """Wait until clients, relay and consumer have each completed some work."""

    def done() -> list[int]:
        committed = banks.upstream.one("SELECT count(*) FROM transfer")
        effects = banks.downstream.one("SELECT count(*) FROM credit")
        return [committed, effects]

    before: list[int] = []

    def moved() -> bool:
        before.extend(done() if not before else ())
        return all(now >= then + 4 for now, then in zip(done(), before, strict=True))

    banks.until(moved, "clients, relay and consumer work", within=60)


FAULTS = (
    Fault(
        id="F4",
        name="PostgreSQL stopped immediately, ten times",
        run=stopped_immediately,
        after=expect_all_to_end_in_order,
        setting=own_postgres,
    ),
    Fault(
        id="F5",
        name="backends terminated and killed",
        run=backends_lost,
        after=expect_all_to_end_in_order,
        setting=own_postgres,
    ),
    Fault(
        id="F6",
        name="PostgreSQL's disk full",
        run=disk_full,
        after=expect_all_to_end_in_order,
        setting=postgres_on_small_disk,
        why_not=why_not,
    ),
)
