"""F40, F41, F52, F54, F55: poolers, isolation, failover, forks, signals at any moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from sqlalchemy import make_url

from shieldtx.scheduling.exit_status import EXIT_FAILING, EXIT_STOPPED
from tests.support.pgbouncer import MISSING, installed, pooler_of, through
from tests.verification.faults.bank import forks
from tests.verification.faults.bank.half_message_clients import ClientRun
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.side import Side
from tests.verification.faults.survivors import expect_all_to_end_in_order
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import World, own_ledger

READ_ONLY: Final = "read-only transaction"
OFTEN: Final = 8
"""How often an error is logged after every connection of a worker has reported it."""
CONFLICT: Final = "could not serialize access"
NO_CONFLICTS: Final = "no transaction fails because of another one"
FORKS: Final = 3
OWN_SESSIONS: Final = "each process has sessions of its own"
REFUSED: Final = "password authentication failed"
PREPARED: Final = r'prepared statement \\?"_pg3_'
"""Part of the errors of statements that lie in the session of another client."""
NOT_PREPARED: Final = "no statement is prepared through a pooler"
PORT: Final = "BANK_POOLER_PORT"
URL: Final = "SHIELDTX_DATABASE_URL"
ENDS: Final = 12
"""Total number of signals."""
LONGEST_LIFE_S: Final = 2.0
"""Maximum age of a process at its signal: from its first moment to its work."""


def behind_a_pooler(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Start a PgBouncer in front of the run's PostgreSQL."""
    # A folder for each call: a mutant run opens the pooler again in the same world.
    folder = Path(mkdtemp(prefix="pgbouncer-", dir=world.folder))
    port = open_.enter_context(pooler_of(world.postgres, folder))
    return {"settings": {PORT: str(port), "SHIELDTX_DATABASE_POOLER": "transaction"}}


def pooled(banks: Banks) -> None:
    """Relays and consumers share a few connections to the server, and one of each is killed."""
    for _ in range(2):
        workers = [_pooled(side, *words) for side in banks.sides for words in _commands(side)]
        for worker in workers:
            worker.await_ready()
        clients = banks.begin_writing(60, pause=0.02)
        banks.until(
            lambda: (
                banks.downstream.one("SELECT count(*) FROM credit") > 10 or banks.logged(PREPARED)
            ),
            "they work",
        )
        for worker in workers:
            worker.kill()
        clients.finish()
        banks.expect(not banks.logged(PREPARED), NOT_PREPARED)
    for side in banks.sides:
        for words in _commands(side):
            _pooled(side, *words).await_ready()


def _pooled(side: Side, *words: str) -> Worker:
    return side.launch(*words, **{URL: through(side.url, int(side.environment[PORT]))})


def _commands(side: Side) -> tuple[tuple[str, ...], ...]:
    return ("relay",), ("consume", side.group)


def isolated(banks: Banks) -> None:
    """The server's default isolation level changes for all later sessions."""
    for level in ("repeatable read", "serializable"):
        for side in banks.sides:
            side.execute(
                f"ALTER DATABASE {side.database} SET default_transaction_isolation = '{level}'"
            )
        banks.open()
        banks.write(60, accounts=banks.accounts[:2])
        banks.drain()


def side_by_side(banks: Banks) -> None:
    """Two relays and two consumers on each side share the work."""
    banks.open()
    banks.open()
    banks.write(200)
    banks.expect(not banks.logged(CONFLICT), NO_CONFLICTS)


def failed_over(banks: Banks) -> None:
    """Workers reach a server that refuses writes, then their name leads to another server.

    A former primary and a database that is read-only by default look the same to a session: it
    keeps the mode that it began with.
    """
    banks.open()
    banks.write(20)
    before = banks.count_in_server_log(READ_ONLY)
    for side in banks.sides:
        side.execute(f"ALTER DATABASE {side.database} SET default_transaction_read_only = on")
        _cut_all(side)
    banks.until(
        partial(_have_met_it, banks, before), "the relays find a server that takes no writes"
    )
    for side in banks.sides:
        with side.engine.begin() as connection:
            connection.exec_driver_sql("SET TRANSACTION READ WRITE")
            connection.exec_driver_sql(
                f"ALTER DATABASE {side.database} RESET default_transaction_read_only"
            )
    banks.write(40)


def _have_met_it(banks: Banks, before: int) -> bool:
    """Return whether the relays often met such a server: by then on all their connections.

    A worker logs an error once a minute, so the server's log counts the refusals. Consumers without
    work do not write.
    """
    relays = [w for side in banks.sides for w in side.workers if w.name.startswith("relay")]
    refused = banks.count_in_server_log(READ_ONLY) - before
    return refused >= OFTEN * len(relays) and all(w.has_logged(READ_ONLY) for w in relays)


def password_changed(banks: Banks) -> None:
    """The password changes and sessions are cut: workers end by themselves, and are restarted."""
    up = banks.upstream
    role = f"client_{up.database}"
    up.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'first'")

    def url(password: str) -> str:
        named = make_url(up.url).set(username=role, password=password)
        return named.render_as_string(hide_password=False)

    banks.open(but="upstream relay")
    relay = up.relay(**{URL: url("first"), "SHIELDTX_FAILURE_LIMIT": "2"})
    banks.write(20)
    up.execute(f"ALTER ROLE {role} PASSWORD 'second'")
    up.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :r", r=role)
    banks.write(20)
    banks.expect(relay.join(60), "the relay ends by itself")
    banks.expect(relay.exit_status == EXIT_FAILING, f"with its status, not {relay.exit_status}")
    banks.expect(relay.has_logged(REFUSED), "its log names the password")
    up.relay(**{URL: url("second")})


def _cut_all(side: Side) -> None:
    side.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def forked(banks: Banks) -> None:
    """An application is used, then its process forks: all write half messages concurrently."""
    sessions_of_forks(banks)
    banks.open()
    client_run = ClientRun(
        name="forked", folder=str(banks.folder), journal=str(banks.journal), transfers=15, threads=2
    )
    banks.upstream.call("forks", forks.work, client_run, 4).finish()
    made = banks.upstream.one("SELECT count(*) FROM shield_outbox WHERE tx_kind = 'COMMIT'")
    banks.expect(made == 60, f"each process has written its messages: {made} of 60")


def sessions_of_forks(banks: Banks) -> None:
    """An application is used, then its process forks, and the children use it too."""
    banks.upstream.call("sessions", forks.note_sessions, str(banks.folder), FORKS).finish()
    noted = [file.name.split("-")[1] for file in banks.folder.glob("session-*")]
    banks.expect(
        len(set(noted)) == FORKS + 1,
        f"{OWN_SESSIONS}: {FORKS + 1} processes, server processes {noted}",
    )


def signalled(banks: Banks) -> None:
    """Workers get SIGTERM or SIGHUP at any time from their first moment."""
    clients = banks.begin_writing(150, pause=0.05)
    for number in range(ENDS):
        side = banks.sides[number % 2]
        worker = side.launch(*_commands(side)[number // 2 % 2])
        time.sleep(banks.chance.uniform(0.0, LONGEST_LIFE_S))
        asked = banks.chance.choice((signal.SIGTERM, signal.SIGHUP))
        worker.send(asked)
        ended = worker.join(30)
        status = worker.exit_status
        banks.expect(ended, f"{worker.name} ends after {asked.name}\n{worker.tail(3)}")
        # Before the worker runs, a signal has its default effect.
        allowed = {EXIT_STOPPED} if worker.is_ready() else {EXIT_STOPPED, -asked}
        banks.expect(status in allowed, f"{worker.name} after {asked.name}: {status}")
    clients.finish()
    held = banks.upstream.one("SELECT count(*) FROM shield_shard WHERE lease_until > now()")
    banks.expect(held == 0, f"{held} shards are held by relays that have ended")
    banks.open()


def _why_no_hangups() -> str | None:
    """Return why SIGHUP is unusable: workers inherit an ignored signal, as below nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return "SIGHUP is ignored (nohup): run the command without nohup" if ignored else None


FAULTS = (
    Fault(
        id="F40",
        name="PgBouncer in transaction mode",
        run=pooled,
        after=expect_all_to_end_in_order,
        setting=behind_a_pooler,
        why_not=lambda: None if installed() else MISSING,
    ),
    Fault(
        id="F41",
        name="another isolation level by the server's default",
        run=isolated,
        after=expect_all_to_end_in_order,
    ),
    Fault(
        id="F52",
        name="failover through a server that accepts no writes",
        run=failed_over,
        after=expect_all_to_end_in_order,
    ),
    Fault(id="F52b", name="the database's password changed", run=password_changed),
    Fault(
        id="F54",
        name="forked processes of one application",
        run=forked,
        after=expect_all_to_end_in_order,
        setting=own_ledger,
    ),
    Fault(
        id="F55",
        name="SIGTERM and SIGHUP at any moment",
        run=signalled,
        why_not=_why_no_hangups,
    ),
)
