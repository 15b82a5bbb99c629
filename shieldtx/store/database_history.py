"""Reads how a PostgreSQL database can be recognised, and whether it still has its earlier rows.

A restored copy of an earlier time lacks every row that was inserted after that time, and every
change of a row. Each lost row was open or settled when the history was read:

- One was open: then the open row with the highest `seq` was inserted no earlier, and is lost too.
- All were settled: then the last settlement of the table was after that time too.

So two rows of each table are a proof, whatever the ids of their events and the clocks of the
writers. The newest event is a third proof: it costs nothing, and its row rarely changes again. The
last value of the table's sequence is not a proof: after a restore it grows again, and exceeds the
earlier value by the next night. No index on `seq` of settled rows exists, and none is needed.

A proof row that was since purged, replayed or published again looks like a loss. Such a loss costs
a full run, and no mismatch is missed. `remains_of` is stricter: there a row is lost only if it
exists in no state and no purge has removed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    exists,
    func,
    or_,
    select,
    text,
)

from shieldtx.domain.events import first_id_of
from shieldtx.domain.schedule import EARLIEST
from shieldtx.ports.database_history import (
    DatabaseHistory,
    LostRow,
    OpenRow,
    Remains,
    SettledRow,
)
from shieldtx.store.statements import retention as retention_sql
from shieldtx.store.statements.sequences import open_parts
from shieldtx.store.tables import Tables

# The timeline names the files of the write-ahead log, and needs no privilege. The record of the
# last checkpoint shows a promotion only some time later.
_HERE: Final = text("""
    SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE
               left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline,
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database,
           to_regclass(:outbox)::oid::bigint AS outbox, to_regclass(:inbox)::oid::bigint AS inbox,
           has_function_privilege('pg_control_system()', 'EXECUTE') AS may_ask,
           clock_timestamp() AS now""")
_SYSTEM: Final = text("SELECT system_identifier::text FROM pg_control_system()")
_CLOCK_SKEW: Final = timedelta(days=1)
_SET_BACK: Final = timedelta(minutes=1)
"""The most that a clock may be set back between the insertion of a row and its settlement."""
# The index on `settled_at` (BRIN) finds the pages of a span. Without the index, before PostgreSQL
# 16, each span would scan the table, so one query reads all rows.
_SPANS: Final = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), timedelta(days=30))
_INDEXED: Final = (16,)
_OLDEST: Final = 1000
_OUTBOX: Final = 0
_INBOX: Final = 1


class SqlDatabaseHistory:
    """The history of the database that holds a service's tables."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables

    def now(self) -> DatabaseHistory:
        """Return the present history."""
        outbox, inbox = self._tables.outbox, self._tables.inbox
        with self._engine.connect() as connection:
            names = {"outbox": _name(outbox), "inbox": _name(inbox)}
            here = connection.execute(_HERE, names).one()
            # An id that was made otherwise, without the time, may be above all later ids.
            soon = first_id_of((here.now + _CLOCK_SKEW).timestamp())
            return DatabaseHistory(
                system=connection.scalars(_SYSTEM).one() if here.may_ask else None,
                timeline=here.timeline,
                objects=(here.database, here.outbox, here.inbox),
                newest=(_newest(connection, outbox, soon), _newest(connection, inbox, soon)),
                latest_open=(_latest_open(connection, outbox), _latest_open(connection, inbox)),
                asked_at=here.now,
                latest_settled=(
                    _latest_settled(connection, outbox, here.now),
                    _latest_settled(connection, inbox, here.now),
                ),
            )

    def remains_of(self, earlier: DatabaseHistory, *, retention: timedelta | None) -> Remains:
        """Return what remains of an earlier history, if settled rows are kept for `retention`."""
        left = self._left(earlier, (_OUTBOX, _INBOX), retention)
        return Remains(
            has_settlement=left.has_settlement and not left.lost,
            copied_before=min(left.lost, default=None),
        )

    def inbox_has(self, earlier: DatabaseHistory, *, retention: timedelta | None) -> bool | None:
        """Whether the inbox still has one of its earlier rows, or had none.

        False: a row is missing that no purge has removed. None: a purge may have removed all rows.
        """
        left = self._left(earlier, (_INBOX,), retention)
        if left.lost:
            return False
        return True if left.has_any or not left.are_any else None

    def inbox_settled_since(self) -> datetime | None:
        """Return when one of the first rows was settled; None if no row is settled.

        No index has the first settlement, and the table may be large. One of the oldest events was
        settled early, unless all of them came late. Then the time is later, never too early.
        """
        c = self._tables.inbox.c
        # A time that was set by hand, such as infinity, is not the time of a settlement.
        is_settled = c.settled_at.between(EARLIEST, func.clock_timestamp())
        oldest = select(c.settled_at).where(is_settled).order_by(c.event_id)
        with self._engine.connect() as connection:
            return min(connection.scalars(oldest.limit(_OLDEST)), default=None)

    def _left(
        self, earlier: DatabaseHistory, numbers: Sequence[int], retention: timedelta | None
    ) -> _Left:
        both = (self._tables.outbox, self._tables.inbox)
        with self._engine.connect() as connection:

            def is_there(condition: ColumnElement[bool]) -> bool:
                return connection.scalars(select(exists().where(condition))).one()

            proofs = [proof for n in numbers for proof in _proofs(both[n], n, earlier)]
            gone = [proof.at for proof in proofs if not is_there(proof.in_any_state)]
            unchanged = any(
                is_there(proof.unchanged) for proof in proofs if proof.unchanged is not None
            )
            # Read afterwards: a purge may run meanwhile.
            purged_until = connection.scalar(retention_sql.purged_until(self._tables))
            now = connection.scalars(select(func.clock_timestamp())).one()
        configured = None if retention is None else now - retention
        kept = max((t for t in (configured, purged_until) if t is not None), default=None)
        return _Left(
            are_any=bool(proofs),
            has_any=len(gone) < len(proofs),
            has_settlement=unchanged,
            lost=[at for at in gone if kept is None or at >= kept],
        )

    def last_settled(self, *, before: datetime) -> datetime | None:
        """Return the time of the last settlement up to `before`."""
        with self._engine.connect() as connection:
            rows = (
                _latest_settled(connection, table, before)
                for table in (self._tables.outbox, self._tables.inbox)
            )
            return max((row.settled_at for row in rows if row is not None), default=None)

    def lacks(self, earlier: DatabaseHistory) -> tuple[LostRow, ...]:
        """Return the rows of an earlier history that are gone, or were settled at another time."""
        both = (("outbox", self._tables.outbox), ("inbox", self._tables.inbox))
        with self._engine.connect() as connection:
            return tuple(
                LostRow(table=name, what=what)
                for number, (name, table) in enumerate(both)
                for what, row in _rows(table, number, earlier)
                if not connection.scalars(select(exists().where(*row))).one()
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Left:
    """The remaining rows among the proofs of tables."""

    are_any: bool
    """There were proofs."""
    has_any: bool
    has_settlement: bool
    """The row of a last settlement is unchanged."""
    lost: Sequence[datetime]
    """For each missing row that no purge has removed: the time at which it is known to exist."""


def _rows(
    table: Table, number: int, earlier: DatabaseHistory
) -> Iterator[tuple[str, tuple[ColumnElement[bool], ...]]]:
    """Yield the conditions on the rows of a table that an earlier history names."""
    c = table.c
    newest = earlier.newest[number]
    if newest is not None:
        yield "what was its newest event", (c.event_id == newest,)
    open_ = earlier.latest_open[number]
    if open_ is not None:
        yield "what was its latest open row", (c.event_id == open_.event_id, c.seq == open_.seq)
    settled = earlier.latest_settled[number]
    if settled is not None:
        same = (c.event_id == settled.event_id, c.settled_at == settled.settled_at)
        yield "what was its last settlement", same


@dataclass(frozen=True, kw_only=True, slots=True)
class _Proof:
    """A row that an earlier history names and that was not settled before `at`."""

    at: datetime
    in_any_state: ColumnElement[bool]
    """Whether the row exists; not a later row of the same event, as after a restore."""
    unchanged: ColumnElement[bool] | None = None


def _proofs(table: Table, number: int, earlier: DatabaseHistory) -> Iterator[_Proof]:
    """Yield the last settlement and the latest open row of a table, as the module describes."""
    c = table.c
    came = c.received_at if "received_at" in c else c.created_at
    settled, open_ = earlier.latest_settled[number], earlier.latest_open[number]
    if settled is not None:
        at, is_it = settled.settled_at, c.event_id == settled.event_id
        since = or_(c.settled_at.is_(None), c.settled_at >= at)
        yield _Proof(
            at=at,
            in_any_state=and_(is_it, came <= at + _SET_BACK, since),
            unchanged=and_(is_it, c.settled_at == at),
        )
    if open_ is not None and earlier.asked_at is not None:
        is_it = c.event_id == open_.event_id
        yield _Proof(
            at=earlier.asked_at, in_any_state=and_(is_it, came <= earlier.asked_at + _SET_BACK)
        )


def _newest(connection: Connection, table: Table, before: UUID) -> UUID | None:
    return connection.scalars(
        select(table.c.event_id)
        .where(table.c.event_id < before)
        .order_by(table.c.event_id.desc())
        .limit(1)
    ).one_or_none()


def _latest_open(connection: Connection, table: Table) -> OpenRow | None:
    """Return the latest row of all indexes of open rows: no index of the outbox has all rows."""
    c = table.c
    latest = select(c.event_id, c.seq).order_by(c.seq.desc()).limit(1)
    found = [row for part in open_parts(table) for row in connection.execute(latest.where(part))]
    if not found:
        return None
    last = max(found, key=lambda row: row.seq)
    return OpenRow(event_id=last.event_id, seq=last.seq)


def _latest_settled(connection: Connection, table: Table, now: datetime) -> SettledRow | None:
    """Search in growing spans; a time in the future was set by hand, and would stay the latest."""
    c = table.c
    latest = (
        select(c.event_id, c.settled_at)
        .where(c.settled_at <= now)
        .order_by(c.settled_at.desc(), c.event_id.desc())
        .limit(1)
    )
    version = connection.dialect.server_version_info or ()
    for span in _SPANS if version >= _INDEXED else ():
        found = connection.execute(latest.where(c.settled_at >= now - span)).one_or_none()
        if found is not None:
            return SettledRow(event_id=found.event_id, settled_at=found.settled_at)
    found = connection.execute(latest).one_or_none()
    return (
        None if found is None else SettledRow(event_id=found.event_id, settled_at=found.settled_at)
    )


def _name(table: Table) -> str:
    """Return the name as `to_regclass` reads it."""
    quoted = f'"{table.name}"'
    return quoted if table.schema is None else f'"{table.schema}".{quoted}'
