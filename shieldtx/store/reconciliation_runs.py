"""The stored runs of the reconciliation: one at a time, and the start of the next run."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Engine, Row
from sqlalchemy.exc import DBAPIError

from shieldtx.domain.reasons import message_of
from shieldtx.errors import AlreadyRunning, ConfigurationError, LeaseLost
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import reconciliation_runs as sql
from shieldtx.store.tables import Tables

log = logging.getLogger(__name__)

LEASE: Final = timedelta(minutes=2)
"""The time after which a run without an extension is dead, and another run may begin."""
EXTENSIONS_PER_LEASE: Final = 6
KEPT: Final = timedelta(days=90)
"""The time for which ended runs are listed."""

LOOKED_BACK: Final = 100
"""The number of runs that are read at a time."""
MOST_SCOPES: Final = 20
"""The most other configurations whose runs are read."""
NO_BASIS: Final = "{}"
ABANDONED: Final = "ABANDONED"
"""The outcome of a run whose process died."""
_DIED: Final = "it did not renew its lease, and another run began"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run of the reconciliation, at one moment of the database's clock."""

    run_id: str
    scope: str
    """The configuration of the run."""
    mode: str
    who: str
    """The user, and the machine."""
    folder: str
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    """None while the run is in progress."""
    dead: bool
    """The run has not ended, and its lease has run out."""
    good: bool
    """The next run may start from its watermarks."""
    watermarks: Mapping[str, datetime]
    """By service, the time up to which all events are judged and in order."""
    totals: Mapping[str, int]
    """The number of events by verdict."""
    problem: str
    basis: str
    """The judged rows and databases, as the caller of `begin` or `judge` recorded them."""
    at: datetime
    """The time of the query."""


class SqlReconciliationRuns:
    """Stores the runs of one configuration, in the database of its first service."""

    def __init__(self, engine: Engine, tables: Tables, *, scope: str) -> None:
        self.scope = scope
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)

    def begin(
        self,
        run_id: str,
        *,
        mode: str,
        who: str,
        folder: str = "",
        basis: str = NO_BASIS,
        lease: timedelta = LEASE,
        alike: Callable[[str], str] = lambda basis: basis,
    ) -> StoredRun:
        """Record the start of a run; raises AlreadyRunning while another run is in progress.

        A dead run is given up, and a run that began while the clock was ahead gets a start before
        this run. Old runs are deleted, except the latest good run of each basis, because two
        configurations may share a name. `alike` returns the same text for two bases if one next run
        could start from the runs of both.
        """
        t, d, scope = self._tables, self._dialect, self.scope
        with self._engine.begin() as connection:
            connection.execute(
                sql.give_up_dead(t, d, scope=scope, outcome=ABANDONED, problem=_DIED)
            )
            connection.execute(sql.set_right(t, d, scope=scope))
            connection.execute(sql.shorten_leases(t, d, scope=scope, lease=lease))
            kept: dict[str, str] = {}
            for old in connection.execute(sql.old_good(t, d, scope=scope, older_than=KEPT)):
                kept.setdefault(alike(old.basis), old.run_id)
            connection.execute(
                sql.forget_old(t, d, scope=scope, older_than=KEPT, kept=list(kept.values()))
            )
            begun = connection.execute(
                sql.begin(
                    t,
                    d,
                    run_id=run_id,
                    scope=scope,
                    mode=mode,
                    who=who,
                    folder=folder,
                    basis=basis,
                    lease=lease,
                )
            ).one_or_none()
        run = self._first(t.reconcile_run.c.run_id == run_id)
        if begun is not None and run is not None:
            return run
        if run is not None:
            raise ConfigurationError(f"there has been a run {run_id} already: choose another id")
        other = self.running()
        if other is None:
            raise AlreadyRunning("another run of this configuration has just ended: try again")
        raise AlreadyRunning(
            f"run {other.run_id} of this configuration is running: {other.who} started it at "
            f"{other.started_at:%Y-%m-%d %H:%M:%S} UTC; wait for its end, or, if it died, until "
            "its lease has run out"
        )

    def extend(self, run_id: str, *, lease: timedelta = LEASE) -> None:
        """Extend the lease of a run; raises LeaseLost if another run has begun."""
        with self._engine.begin() as connection:
            statement = sql.extend(self._tables, self._dialect, run_id=run_id, lease=lease)
            if connection.execute(statement).rowcount != 1:
                raise LeaseLost(_lost(run_id))

    @contextmanager
    def holding(self, run_id: str, *, lease: timedelta = LEASE) -> Iterator[threading.Event]:
        """Extend the lease of a run in the background; set the event if the lease is lost."""
        lost, over = threading.Event(), threading.Event()

        def hold() -> None:
            while not over.wait(lease.total_seconds() / EXTENSIONS_PER_LEASE):
                try:
                    self.extend(run_id, lease=lease)
                except LeaseLost:
                    lost.set()
                    return
                except DBAPIError as error:
                    # The database may be reachable again before the lease ends.
                    log.warning(
                        "run could not renew its lease",
                        extra={
                            "action": "run_lease_not_renewed",
                            "run_id": run_id,
                            "error": message_of(error),
                        },
                    )

        thread = threading.Thread(target=hold, name=f"reconcile {run_id}", daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            over.set()
            thread.join()

    def judge(self, run_id: str, *, mode: str, basis: str) -> None:
        """Record the mode and the basis of a run; raises LeaseLost like `finish`."""
        statement = sql.judge(self._tables, run_id=run_id, mode=mode, basis=basis)
        with self._engine.begin() as connection:
            if connection.execute(statement).rowcount != 1:
                raise LeaseLost(_lost(run_id))

    def finish(
        self,
        run_id: str,
        *,
        outcome: str,
        good: bool = False,
        watermarks: Mapping[str, datetime] | None = None,
        totals: Mapping[str, int] | None = None,
        problem: str = "",
    ) -> None:
        """Record the outcome of a run; raises LeaseLost and records nothing if it was given up.

        With `good`, the next run of the same basis may start from the watermarks of this run.
        """
        moments = {name: when.isoformat() for name, when in (watermarks or {}).items()}
        statement = sql.finish(
            self._tables,
            self._dialect,
            run_id=run_id,
            outcome=outcome,
            good=good,
            watermarks=json.dumps(moments),
            totals=json.dumps(dict(totals or {})),
            problem=problem,
        )
        with self._engine.begin() as connection:
            if connection.execute(statement).rowcount != 1:
                raise LeaseLost(_lost(run_id))

    def good(self) -> Iterator[StoredRun]:
        """Yield the good runs, the latest first."""
        return self._all(self._tables.reconcile_run.c.good)

    def ended(self) -> Sequence[StoredRun]:
        """Return the latest runs that have ended, the latest first."""
        return self._select(LOOKED_BACK, self._tables.reconcile_run.c.outcome.is_not(None))

    def all_ended(self) -> Iterator[StoredRun]:
        """Yield all runs that have ended, the latest first."""
        return self._all(self._tables.reconcile_run.c.outcome.is_not(None))

    def ended_as(self, outcomes: Collection[str]) -> Sequence[StoredRun]:
        """Return the latest runs that have ended with one of these outcomes, the latest first."""
        return self._select(LOOKED_BACK, self._tables.reconcile_run.c.outcome.in_(outcomes))

    def of_other_scopes(self) -> Iterator[SqlReconciliationRuns]:
        """Yield the runs of the other configurations in this database, the latest first.

        Yields at most MOST_SCOPES configurations, in case each run has its own name.
        """
        statement = sql.scopes(self._tables, without=self.scope).limit(MOST_SCOPES)
        with self._engine.connect() as connection:
            found = connection.scalars(statement).all()
        for scope in found:
            yield SqlReconciliationRuns(self._engine, self._tables, scope=scope)

    def running(self) -> StoredRun | None:
        """Return the run that is in progress, or dead before its end."""
        return self._first(self._tables.reconcile_run.c.outcome.is_(None))

    def find(self, run_id: str) -> StoredRun | None:
        """Return a run by its id."""
        return self._first(self._tables.reconcile_run.c.run_id == run_id)

    def latest(self, *, limit: int) -> Sequence[StoredRun]:
        """Return up to `limit` runs, the latest first."""
        return self._select(limit)

    def _first(self, condition: ColumnElement[bool]) -> StoredRun | None:
        return next(iter(self._select(1, condition)), None)

    def _all(self, condition: ColumnElement[bool]) -> Iterator[StoredRun]:
        skipped = 0
        while some := self._select(LOOKED_BACK, condition, skipped=skipped):
            yield from some
            skipped += len(some)

    def _select(
        self, limit: int, *conditions: ColumnElement[bool], skipped: int = 0
    ) -> list[StoredRun]:
        statement = sql.runs(self._tables, self._dialect, scope=self.scope).limit(limit)
        if skipped:
            statement = statement.offset(skipped)
        with self._engine.connect() as connection:
            return [_stored(row) for row in connection.execute(statement.where(*conditions))]


def _lost(run_id: str) -> str:
    return (
        f"run {run_id} was given up meanwhile: it did not renew its lease, and "
        "another run began; what it found counts for nothing, run it again"
    )


def _stored(row: Row[*tuple[Any, ...]]) -> StoredRun:
    moments = json.loads(row.watermarks)
    return StoredRun(
        run_id=row.run_id,
        scope=row.scope,
        mode=row.mode,
        who=row.who,
        folder=row.folder,
        started_at=row.started_at,
        finished_at=row.finished_at,
        outcome=row.outcome,
        dead=bool(row.dead),
        good=row.good,
        watermarks={name: datetime.fromisoformat(when) for name, when in moments.items()},
        totals=json.loads(row.totals),
        problem=row.problem,
        basis=row.basis,
        at=row.at,
    )
