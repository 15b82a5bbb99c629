"""Queries the servers of the services' databases: read-only, and within a time limit.

This process itself runs queries with few rows, and long queries that run while Spark starts: that
takes milliseconds, while a Spark job takes most of a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.window import Clock

from .row_filters import inside_calendar

# Compiling a statement takes longer than running these. The memory suffices for the groups of a
# digest: 25 MB for 100,000 of them. PostgreSQL expects as many groups as rows, and would sort
# gigabytes to be safe.
_SESSION = "-c jit=off -c work_mem=128MB -c enable_sort=off"
_REPLICA_S = 60.0
_REPLICA_PAUSE_S = 0.5

# Prepared transactions have no session. Their start is not known, only the time of preparation,
# which counts as a step of an event like any other. Vacuum writes no rows of these tables. A role
# without pg_read_all_stats sees other roles' sessions, but not the start of their transactions.
_CLOCK = """
    SELECT clock_timestamp() AS now,
           least(
               (SELECT min(xact_start) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND backend_type <> 'autovacuum worker'),
               (SELECT min(prepared) FROM pg_prepared_xacts
                WHERE database = current_database())) AS oldest_transaction,
           (SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND usesysid IS NOT NULL
              AND NOT pg_has_role(usesysid, 'USAGE')
              AND NOT pg_has_role('pg_read_all_stats', 'USAGE')) AS hidden_sessions,
           pg_is_in_recovery() AS is_replica,
           CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn()::text END AS written,
           current_user::text AS role"""
# No two servers start in the same microsecond.
_PLACE = """
    SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), d.oid,
                     '{outbox}'::regclass::oid) AS location,
           current_setting('server_encoding') AS encoding
    FROM pg_database d WHERE d.datname = current_database()"""
# A replica shares all of these with its primary. Not every role may query the system identifier.
_IDENTITY = """
    SELECT (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database,
           to_regclass('{outbox}')::oid::bigint AS outbox,
           to_regclass('{inbox}')::oid::bigint AS inbox,
           has_function_privilege('pg_control_system()', 'EXECUTE') AS may_ask"""
_SYSTEM = "SELECT system_identifier::text FROM pg_control_system()"
_NOTES_PURGES = "SELECT to_regclass('{purged}') IS NOT NULL"
# The later time of both tables: a row may be missing in either.
_PURGED = "SELECT clock_timestamp() AS now, {purged_until} AS purged_until FROM {purged}".replace(
    "{purged_until}", inside_calendar("max(purged_until)")
)
_REPLAYED = """
    SELECT pg_is_in_recovery() AS is_replica,
           coalesce(pg_last_wal_replay_lsn() >= CAST(:written AS pg_lsn), false) AS has_it"""

_EARLIER_RELEASE = (
    "the tables of {} are of an earlier release, whose purge does not note what it has removed: "
    "run `shieldtx db upgrade` there"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """The queries of a run to the databases of its services, without Spark."""

    request: ReconcileRequest
    _engines: dict[str, Engine] = field(default_factory=dict, init=False, repr=False)
    _places: dict[str, Row[*tuple[Any, ...]]] = field(default_factory=dict, init=False, repr=False)
    _asked: set[Connection] = field(default_factory=set, init=False, repr=False)

    @property
    def services(self) -> tuple[ServiceDatabase, ...]:
        """All services of the run."""
        return self.request.services

    def clocks(self) -> Mapping[str, Clock]:
        """Query all databases for their time and oldest transaction, before any row is read."""
        return {service.name: self._clock(service) for service in self.services}

    def clocks_at_end(self, clocks: Mapping[str, Clock]) -> Mapping[str, Clock]:
        """Return the clocks to judge by, after rows were read and purges may have gone further.

        Rows that were purged before they were read are not mismatches.
        """
        found = dict(clocks)
        for service in self.services:
            clock = clocks[service.name]
            if clock.obstacle:
                continue
            with self._connected(service, service.url) as connection:
                row = connection.exec_driver_sql(_PURGED.format(**tables_of(service))).one()
            found[service.name] = clock.at_end(
                now=row.now, purged_until=row.purged_until, margin=self.request.margin
            )
        return found

    def location(self, service: ServiceDatabase) -> str:
        """Return an identifier that services with the same tables share."""
        return str(self._place(service).location)

    @property
    def all_utf8(self) -> bool:
        """Whether all databases store texts in UTF-8, so that equal texts have equal bytes."""
        return all(self._place(service).encoding == "UTF8" for service in self.services)

    def _place(self, service: ServiceDatabase) -> Row[*tuple[Any, ...]]:
        found = self._places.get(service.name)
        if found is None:
            with self._connected(service, service.url) as connection:
                query = _PLACE.format(**tables_of(service))
                found = self._places[service.name] = connection.exec_driver_sql(query).one()
        return found

    def rows(
        self, service: ServiceDatabase, query: str, **names: str
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        """Return a query's rows; `{outbox}` and `{inbox}` are the tables, `names` the rest."""
        with self._connected(service, service.replica_url or service.url) as connection:
            # Passed unchanged: colons and per cent signs are PostgreSQL's.
            statement = query.format(**tables_of(service), **names).replace("%", "%%")
            return connection.exec_driver_sql(statement).all()

    def stream(
        self, service: ServiceDatabase, query: str, **names: str
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query as the server produces them; for `names`, see `rows`.

        A server uses one processor for a server-side cursor, and several for this.
        """
        with self._connected(service, service.replica_url or service.url) as connection:
            driven = connection.connection.driver_connection
            assert driven is not None  # noqa: S101  the connection is open
            with driven.cursor() as cursor:
                yield from cursor.stream(query.format(**tables_of(service), **names))

    def cancel(self) -> None:
        """Cancel the running statements; each waiting caller gets an error.

        May be called while other threads run queries.
        """
        for connection in list(self._asked):
            driven = connection.connection.driver_connection
            # The statement may have ended, or be on its way to the server.
            with suppress(connection.dialect.loaded_dbapi.Error):
                if driven is not None:
                    driven.cancel_safe()

    @property
    def limit(self) -> str:
        """The settings of each session, as libpq options."""
        seconds = round(self.request.statement_timeout.total_seconds())
        return f"-c statement_timeout={seconds}s {_SESSION}"

    @contextmanager
    def _connected(self, service: ServiceDatabase, url: str) -> Iterator[Connection]:
        if url not in self._engines:
            parsed = make_url(url)
            options = f"{parsed.query.get('options', '')} {self.limit}"
            self._engines[url] = create_engine(
                parsed,
                isolation_level="AUTOCOMMIT",
                poolclass=NullPool,
                hide_parameters=True,
                connect_args={"options": f"{options} -c default_transaction_read_only=on".strip()},
            )
        with named_in_errors(service), self._engines[url].connect() as connection:
            self._asked.add(connection)
            try:
                yield connection
            finally:
                self._asked.discard(connection)

    def _clock(self, service: ServiceDatabase) -> Clock:
        with self._connected(service, service.url) as connection:
            asked = datetime.now(UTC)
            row = connection.execute(text(_CLOCK)).one()
            answered = datetime.now(UTC)
            tables = tables_of(service)
            notes_purges = connection.exec_driver_sql(_NOTES_PURGES.format(**tables)).scalar_one()
            purged = (
                connection.exec_driver_sql(_PURGED.format(**tables)).one() if notes_purges else None
            )
        return Clock(
            service=service.name,
            now=row.now,
            ahead=row.now - (asked + (answered - asked) / 2),
            oldest_transaction=row.oldest_transaction,
            obstacle=_obstacle(service, row)
            or ("" if notes_purges else _EARLIER_RELEASE.format(service.name))
            or self._replica_obstacle(service, row.written),
            retention=service.retention,
            purged_until=None if purged is None else purged.purged_until,
        )

    def _replica_obstacle(self, service: ServiceDatabase, written: str) -> str:
        """Wait until the replica has the rows that the primary had when its clock was read."""
        if service.replica_url is None:
            return ""
        if other := self._other_than_primary(service, service.replica_url):
            return (
                f"`replica_url` of {service.name} leads to {other} than its `url`, whatever they "
                "hold: name a replica of the server that `url` names, with the same database"
            )
        ends = time.monotonic() + _REPLICA_S
        while time.monotonic() < ends:
            with self._connected(service, service.replica_url) as connection:
                row = connection.execute(text(_REPLAYED), {"written": written}).one()
            if not row.is_replica:
                return f"the replica of {service.name} is none: it takes writes of its own"
            if row.has_it:
                return ""
            time.sleep(_REPLICA_PAUSE_S)
        return (
            f"the replica of {service.name} lacks what the primary wrote {_REPLICA_S:.0f} s ago: "
            "repair the replication, or read from the primary"
        )

    def _other_than_primary(self, service: ServiceDatabase, replica_url: str) -> str:
        """Return the difference between a primary and its replica; empty if none."""
        system, *objects = self._identity(service, service.url)
        system_there, *objects_there = self._identity(service, replica_url)
        if None not in {system, system_there} and system != system_there:
            return f"another cluster (system identifier {system_there}, not {system})"
        names = ("another database", "another table shield_outbox", "another table shield_inbox")
        for name, here, there in zip(names, objects, objects_there, strict=True):
            if here != there:
                return f"{name} (object id {there}, not {here})"
        return ""

    def _identity(self, service: ServiceDatabase, url: str) -> tuple[object, ...]:
        with self._connected(service, url) as connection:
            query = _IDENTITY.format(**tables_of(service))
            row = connection.exec_driver_sql(query).one()
            system = connection.exec_driver_sql(_SYSTEM).scalar_one() if row.may_ask else None
        return system, row.database, row.outbox, row.inbox


@contextmanager
def named_in_errors(service: ServiceDatabase) -> Iterator[None]:
    """Add the name of the service to errors of its database."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the database of service {service.name}")
        raise


def tables_of(service: ServiceDatabase) -> dict[str, str]:
    """Return the values of `{outbox}`, `{inbox}` and `{purged}`."""
    prefix = "" if service.schema is None else f'"{service.schema}".'
    return {name: f'{prefix}"shield_{name}"' for name in ("outbox", "inbox", "purged")}


def _obstacle(service: ServiceDatabase, row: Row[*tuple[Any, ...]]) -> str:
    if row.is_replica:
        return (
            f"the database of {service.name} is a replica, where the transactions that run on its "
            "primary cannot be seen: name the primary as its URL, and this one as its replica"
        )
    if row.hidden_sessions:
        return (
            f"in the database of {service.name}, role {row.role} cannot see since when the "
            f"transactions of other roles run: GRANT pg_read_all_stats TO {row.role}"
        )
    return ""
