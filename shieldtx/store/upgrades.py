"""Upgrades of tables in use: writers wait for a fraction of a second, whatever else runs.

Each revision is one transaction. If it does not get a lock at once, it is rolled back and tried
again later. So no statement queues for long after an upgrade that itself waits for a long reader. A
revision or an index build that PostgreSQL aborts to break a deadlock is tried again too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Final

from alembic.runtime.migration import RevisionStep
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from shieldtx.errors import UpgradeBlocked
from shieldtx.store.dialects import dialect_of
from shieldtx.store.migrations import PAUSE_S, Migrations
from shieldtx.store.online import OnlineChange
from shieldtx.store.statements import locks

log = logging.getLogger(__name__)

PATIENCE: Final = timedelta(minutes=10)
"""How long an upgrade waits for other transactions by default."""

Notice = Callable[[str], None]
"""Receives a line about each step of an upgrade and about each wait."""

LARGE_TABLES: Final = ("shield_inbox", "shield_outbox")

LOCK_WAIT: Final = timedelta(milliseconds=300)
"""How long a writer can wait for an upgrade that waits for an exclusive lock of one table."""

_VACUUM_WAIT: Final = timedelta(seconds=5)
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 2.0


class OnlineUpgrade:
    """An upgrade or downgrade, revision by revision, over its own connections."""

    def __init__(
        self,
        engine: Engine,
        *,
        schema: str | None,
        shards: int | None,
        patience: timedelta,
        notice: Notice | None = None,
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._shards = shards
        self._patience = patience
        self._notice = notice or _log

    def up(self, revision: str) -> None:
        """Upgrade the tables to `revision`; first complete an interrupted earlier upgrade."""
        with self._alone():
            with self._transaction() as connection:
                migrations = Migrations(connection, self._schema)
                migrations.refuse_newer()
                migrations.refuse_other_shards(self._shards)
                steps = migrations.steps_up(revision)
                current = migrations.current()
            self._finish(current)
            for step in steps:
                self._run(step)
                self._finish(step.revision.revision)

    def down(self, revision: str) -> None:
        """Take the tables back to `revision`."""
        with self._alone():
            with self._transaction() as connection:
                migrations = Migrations(connection, self._schema)
                migrations.refuse_newer()
                steps = migrations.steps_down(revision)
                migrations.refuse_losses(steps)
            for step in steps:
                self._run(step)
            with self._transaction() as connection:
                migrations = Migrations(connection, self._schema)
                if migrations.current() is None:
                    migrations.clear()

    def _run(self, step: RevisionStep) -> None:
        """Run a revision's transaction, and repeat it until it gets its locks."""
        name = step.revision.revision
        began = time.monotonic()
        pause = _FIRST_PAUSE_S
        for attempt in count(1):
            try:
                with self._transaction() as connection:
                    self._take_locks(connection)
                    Migrations(connection, self._schema).run_script(step)
            except DBAPIError as error:
                if not (self._is_lock_timeout(error) or self._is_deadlock(error)):
                    raise
                self._wait(f"revision {name}", attempt, time.monotonic() - began, error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._notice(f"revision {name}: {'done' if step.is_upgrade else 'taken back'}")
                return

    def _take_locks(self, connection: Connection) -> None:
        connection.execute(locks.lock_timeout(_VACUUM_WAIT))
        connection.execute(locks.lock_for_changes(LARGE_TABLES, self._schema))
        connection.execute(locks.lock_timeout(LOCK_WAIT))

    def _wait(self, what: str, attempt: int, waited: float, error: DBAPIError) -> None:
        """Report the blocking transaction; raises UpgradeBlocked after the patience is over."""
        holder = self._holder()
        if waited > self._patience.total_seconds():
            raise UpgradeBlocked(
                f"{what} did not get its locks within {waited:.0f} s; {holder}. The tables are as "
                "the revisions before left them: end that transaction or wait for its end, and run "
                "the upgrade again"
            ) from error
        state = "was ended by a deadlock" if self._is_deadlock(error) else "waits for a lock"
        self._notice(f"{what}: {state}, attempt {attempt}, writers go on; {holder}")

    def _holder(self) -> str:
        with self._transaction() as connection:
            row = connection.execute(locks.oldest_holder(LARGE_TABLES, self._schema)).first()
        if row is None:
            return "the transaction in the way has ended"
        return (
            f"the oldest transaction on {row.relname} is of {row.name}, pid {row.pid}, {row.state}"
            + (f", {row.age_s:.0f} s old" if row.age_s is not None else "")
        )

    def _finish(self, revision: str | None) -> None:
        """Make the online changes of a revision that are not complete yet."""
        with self._transaction() as connection:
            migrations = Migrations(connection, self._schema)
            missing = [
                change
                for change in migrations.scripts.online_changes(revision)
                if not change.is_done(connection, self._schema)
            ]
        for change in missing:
            self._notice(f"revision {revision}: {change.name} reads {change.table}, writers go on")
            self._make(change, f"revision {revision}: {change.name}")

    def _make(self, change: OnlineChange, what: str) -> None:
        """Make an online change, and repeat it until no deadlock aborts it."""
        began = time.monotonic()
        pause = _FIRST_PAUSE_S
        for attempt in count(1):
            try:
                self._make_once(change)
            except DBAPIError as error:
                if self._is_lock_timeout(error):
                    raise UpgradeBlocked(
                        f"{what} waited for older transactions for "
                        f"{self._patience.total_seconds():.0f} s; {self._holder()}. Run the "
                        "upgrade again when they have ended: it starts with this change"
                    ) from error
                if not self._is_deadlock(error):
                    raise
                self._wait(what, attempt, time.monotonic() - began, error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                return

    def _make_once(self, change: OnlineChange) -> None:
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                connection.execute(locks.session_without_timeouts())
                connection.execute(locks.lock_timeout(self._patience, in_session=True))
                Migrations(connection, self._schema).finish([change], online=True)
            finally:
                # The session's settings end with the session.
                connection.invalidate()

    def _is_lock_timeout(self, error: DBAPIError) -> bool:
        return dialect_of(self._engine.dialect).is_lock_timeout(error)

    def _is_deadlock(self, error: DBAPIError) -> bool:
        return dialect_of(self._engine.dialect).is_deadlock(error)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock out other migrations, with a transaction that stays open meanwhile."""
        # A separate engine: a pool may have only one connection.
        engine = Engine(self._engine.pool.recreate(), self._engine.dialect, self._engine.url)
        try:
            with _reading_committed(engine) as connection:
                self._wait_until_alone(connection)
                yield
                connection.commit()
        finally:
            engine.dispose()

    def _wait_until_alone(self, connection: Connection) -> None:
        migrations = Migrations(connection, self._schema)
        deadline = time.monotonic() + self._patience.total_seconds()
        for attempt in count():
            connection.execute(locks.without_timeouts())
            if migrations.is_alone():
                connection.execute(locks.nothing()).close()
                return
            # CREATE INDEX CONCURRENTLY of the other migration waits for the end of transactions.
            connection.rollback()
            if time.monotonic() > deadline:
                raise migrations.blocked(self._patience.total_seconds())
            if attempt == 0:
                self._notice("waits for another migration of the tables")
            time.sleep(PAUSE_S)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with _reading_committed(self._engine) as connection, connection.begin():
            connection.execute(locks.without_timeouts())
            yield connection


def _reading_committed(engine: Engine) -> Connection:
    return engine.connect().execution_options(isolation_level="READ COMMITTED")


def _log(line: str) -> None:
    log.info("schema upgrade", extra={"action": "schema_upgrade", "step": line})
