"""The start of a reconciliation run, according to stored runs and the databases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from sqlalchemy import Engine, create_engine, make_url

from shieldtx.errors import SchemaMismatch
from shieldtx.ports.database_history import DatabaseHistory, Remains
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.observed import Observed
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.store.database_history import SqlDatabaseHistory
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns, StoredRun
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables

CONNECT_S = 10
"""Seconds within which a database must accept a connection, unless its URL sets another limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The start of an incremental run."""

    watermarks: Mapping[str, datetime] | None = None
    observed: Observed | None = None
    """What the run of these watermarks read."""
    why_not_later: tuple[str, ...] = ()
    """Why the run starts from the beginning, in sentences."""


class ServiceDatabases:
    """The databases of a run's services, queried within the time limits of the run."""

    def __init__(self, request: ReconcileRequest, engines: Mapping[str, Engine]) -> None:
        self._services = request.services
        self._engines = engines
        self._histories = {
            service.name: SqlDatabaseHistory(engines[service.name], tables(service.schema))
            for service in request.services
        }

    def stored_runs(self, scope: str) -> Iterator[tuple[str, SqlReconciliationRuns]]:
        """Yield the stored runs of a scope in each database, with a service that uses it."""
        databases: dict[tuple[str, str | None], ServiceDatabase] = {}
        for service in self._services:
            databases.setdefault((service.url, service.schema), service)
        for service in databases.values():
            engine = self._engines[service.name]
            yield service.name, SqlReconciliationRuns(engine, tables(service.schema), scope=scope)

    def check_tables(self) -> None:
        """Raise SchemaMismatch for a database whose tables do not fit."""
        for service in self._services:
            schema = Schema(self._engines[service.name], schema=service.schema)
            try:
                with _named_in_errors(service.name):
                    schema.check_tables()
            except SchemaMismatch as error:
                raise SchemaMismatch(f"service {service.name}: {error}") from error

    def histories(self) -> dict[str, DatabaseHistory]:
        """Return the present history of each database."""
        found = {}
        for name, history in self._histories.items():
            with _named_in_errors(name):
                found[name] = history.now()
        return found

    def remains_of(self, service: str, earlier: DatabaseHistory) -> Remains:
        """Return what the database of a service still has of an earlier history."""
        with _named_in_errors(service):
            return self._histories[service].remains_of(earlier, retention=self._kept(service))

    def inbox_has(self, service: str, earlier: DatabaseHistory) -> bool | None:
        """Whether a service's inbox still has an earlier history's row; None: it may be purged."""
        with _named_in_errors(service):
            return self._histories[service].inbox_has(earlier, retention=self._kept(service))

    def inbox_settled_since(self, service: str) -> datetime | None:
        """Return when one of the first rows of a service's inbox was settled; None: no row is."""
        with _named_in_errors(service):
            return self._histories[service].inbox_settled_since()

    def last_settled(self, service: str, *, before: datetime) -> datetime | None:
        """Return when a service's last row was settled, of the rows settled before a time."""
        with _named_in_errors(service):
            return self._histories[service].last_settled(before=before)

    def _kept(self, service: str) -> timedelta | None:
        return next(each.retention for each in self._services if each.name == service)

    def lacking(self, earlier: Basis) -> Iterator[str]:
        """Describe in sentences which databases have lost rows that an earlier run saw."""
        for name, service in earlier.services.items():
            with _named_in_errors(name):
                lost = self._histories[name].lacks(service.history) if service.history else ()
            for table, rows in groupby(lost, key=attrgetter("table")):
                yield (
                    f"the {table} of {name} lacks {' and '.join(row.what for row in rows)}: the "
                    "database was restored from an earlier copy, or what is gone was purged, "
                    "replayed or published again"
                )


def start_of(good: Iterable[StoredRun], now: Basis, databases: ServiceDatabases) -> Start:
    """Return the start after the latest good run that judged the same, if no row was lost since.

    A run of another configuration proves nothing about rows that it did not judge. A restored
    database may have lost rows that were in order. After a clock was set back, later changes lie
    before the watermarks.
    """
    reasons: list[str] = []
    for stored in good:
        earlier = basis.from_json(stored.basis)
        if earlier is None or earlier.observed is None:
            reasons = reasons or ["another release of shieldtx made the earlier runs"]
        elif changed := basis.changes(earlier, now):
            reasons = reasons or changed
        else:
            lost = [
                *basis.losses(earlier, now),
                *basis.clocks_set_back(earlier, now, stored.watermarks),
                *databases.lacking(earlier),
            ]
            if lost:
                return Start(why_not_later=tuple(lost))
            return Start(watermarks=stored.watermarks, observed=earlier.observed)
    return Start(why_not_later=tuple(reasons or ["no earlier run was good"]))


@contextmanager
def opened(request: ReconcileRequest) -> Iterator[ServiceDatabases]:
    """Open the databases of a run's services, which connect at their first query."""
    engines: dict[str, Engine] = {}
    try:
        for service in request.services:
            jdbc_address(service.name, service.url)
            engines[service.name] = _engine(service.url, request.statement_timeout)
        yield ServiceDatabases(request, engines)
    finally:
        for engine in engines.values():
            engine.dispose()


def _engine(url: str, statement_timeout: timedelta) -> Engine:
    """Return an engine with time limits for connections and statements."""
    parsed = make_url(url)
    milliseconds = max(1, round(statement_timeout.total_seconds() * 1000))
    options = f"{parsed.query.get('options', '')} -c statement_timeout={milliseconds}".strip()
    given = {"connect_timeout": str(CONNECT_S), **parsed.query, "options": options}
    return create_engine(parsed.set(query=given), hide_parameters=True)


@contextmanager
def _named_in_errors(service: str) -> Iterator[None]:
    """Add the name of a service's database to an error."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the database of service {service}")
        raise
