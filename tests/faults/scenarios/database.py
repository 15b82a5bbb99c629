"""F4 to F6: what happens to PostgreSQL while everybody works with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from tests.faults.banks import Banks, NotInTime
from tests.faults.matrix import Fault
from tests.faults.survivors import expect_all_to_end_in_order
from tests.faults.workers import Worker
from tests.faults.world import own_postgres

STOPS = 10
RECOVERED = "database system was not properly shut down; automatic recovery in progress"
TERMINATED = "terminating connection due to administrator command"
REINITIALIZED = "all server processes terminated; reinitializing"

ROLES = ("clients", "relay", "consume")
ROUNDS = 6
"""How often a backend of each role is terminated."""
CAUGHT_WITHIN_S = 20.0


def stopped_immediately(banks: Banks) -> None:
    """PostgreSQL crashes ten times while everybody works, and comes back."""
    banks.open()
    for _ in range(STOPS):
        clients = banks.begin_writing(40, pause=0.02)
        _until_all_work(banks)
        banks.postgres.restart("immediate")
        clients.finish()
    banks.write(20)
    banks.expect(
        _server_says(banks, RECOVERED) >= STOPS,
        "PostgreSQL recovered from every stop",
    )


def backends_lost(banks: Banks) -> None:
    """Backends are terminated, and then killed, in the middle of what they do."""
    for side in banks.sides:
        side.launch("relay", PGAPPNAME="relay")
        side.consume(PGAPPNAME="consume")
    for _ in range(ROUNDS):
        clients = _named_clients(banks)
        for role in ROLES:
            _terminate(banks, role)
        clients.finish()
    banks.expect(
        _server_says(banks, TERMINATED) >= ROUNDS * len(ROLES),
        "backends were terminated",
    )
    for role in ROLES:
        clients = _named_clients(banks)
        _kill(banks, role)
        clients.finish()
    banks.write(20)
    banks.expect(
        _server_says(banks, REINITIALIZED) >= len(ROLES),
        "the server took all other backends down with each that was killed",
    )


def _named_clients(banks: Banks) -> Worker:
    return banks.begin_writing(30, pause=0.05, environment={"PGAPPNAME": ROLES[0]})


def _terminate(banks: Banks, role: str) -> None:
    def terminate(pid: int) -> bool:
        return bool(banks.upstream.one("SELECT pg_terminate_backend(:pid)", pid=pid))

    _strike_at_work(banks, role, terminate)


def _kill(banks: Banks, role: str) -> None:
    seen = _server_says(banks, REINITIALIZED)
    _strike_at_work(banks, role, _kill_backend)
    banks.until(
        lambda: _server_says(banks, REINITIALIZED) > seen,
        f"the server notices the death of a backend of the {role}",
    )
    banks.until(lambda: banks.upstream.one("SELECT true"), "the server answers again", within=60)


def _kill_backend(pid: int) -> bool:
    try:
        # Not a stranger that was given the number since.
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres: "):
            return False
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def _strike_at_work(banks: Banks, role: str, strike: Callable[[int], bool]) -> None:
    """Strike a backend of these processes while it is in the middle of something."""
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
            # They are at work for a millisecond or two.
            time.sleep(0.001)
    raise NotInTime(f"no backend of the {role} does anything")


def _server_says(banks: Banks, words: str) -> int:
    """How often PostgreSQL's log has these words."""
    return (banks.postgres.directory / "postgres.log").read_text(errors="replace").count(words)


def _until_all_work(banks: Banks) -> None:
    """Wait until clients, relay and consumer have got something done."""

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
)
