"""Asks a PostgreSQL by what it is known again, and whether it still has what it had.

A copy of an earlier time that was put back lacks every row that was inserted after that time, and
every change of a row. Each such row was open or settled when the history was asked for:

- one was open: then so was the open row with the highest `seq`, which was inserted later still;
- all were settled: then the last settlement of the table is of after that time too.

So two rows of each table are proof, whatever their events' ids and the clocks of the writers. The
newest event is a third: it costs nothing, and its row is hardly ever settled again. The last value
of the table's sequence would be no proof: it goes on from where the copy was, and is above the
earlier one by the next night. Nor is there an index on `seq` of settled rows, and none is needed.

A row that is proof and was purged, replayed or published again since looks like a loss. It costs a
run that looks at everything, and no mismatch is missed. `remains_of` is stricter: there a row is
lost if it is not there in any state, and no purge has removed it.
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

# The write-ahead log's files are named by the timeline, and it is known without any privilege. The
# record of the last checkpoint would know a promotion only some time after it.
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
"""By how much a clock may be set back between the insertion of a row and its settlement."""
# The index on `settled_at` (BRIN) finds the pages of a span. Without the index, before PostgreSQL
# 16, each of these spans would be a scan of the table, so all rows are looked at once.
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
        """Return it as it stands."""
        outbox, inbox = self._tables.outbox, self._tables.inbox
        with self._engine.connect() as connection:
            names = {"outbox": _name(outbox), "inbox": _name(inbox)}
            here = connection.execute(_HERE, names).one()
            # One that is made otherwise, without the time, may lie above all ids that come.
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
        """Return what it has left of what it had, where it keeps settled rows for so long."""
        left = self._left(earlier, (_OUTBOX, _INBOX), retention)
        return Remains(
            has_settlement=left.has_settlement and not left.lost,
            copied_before=min(left.lost, default=None),
        )

    def inbox_has(self, earlier: DatabaseHistory, *, retention: timedelta | None) -> bool | None:
        """Whether the inbox still has a row that it had, or had none.

        False: it lacks one that no purge has removed. None: a purge may have removed all of them.
        """
        left = self._left(earlier, (_INBOX,), retention)
        if left.lost:
            return False
        return True if left.has_any or not left.are_any else None

    def inbox_settled_since(self) -> datetime | None:
        """Return when a row was settled, one of the first; None: no row is settled.

        No index has the first settlement, and the table may be large. Of the oldest events, one is
        among the first, unless all of them came late: then the time is later, never too early.
        """
        c = self._tables.inbox.c
        # A time that was set by hand, as infinity, is none at which a row was settled.
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
            # Asked afterwards: a purge may run meanwhile.
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
        """Return when the last row was settled of those that were settled until then."""
        with self._engine.connect() as connection:
            rows = (
                _latest_settled(connection, table, before)
                for table in (self._tables.outbox, self._tables.inbox)
            )
            return max((row.settled_at for row in rows if row is not None), default=None)

    def lacks(self, earlier: DatabaseHistory) -> tuple[LostRow, ...]:
        """Return which rows of an earlier history are gone, or were settled at another time."""
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
    """What is left of the rows by which tables are known."""

    are_any: bool
    """There were such rows."""
    has_any: bool
    has_settlement: bool
    """The last one to be settled is as it was."""
    lost: Sequence[datetime]
    """Of what no purge has removed: since when each was there, settled or not."""


def _rows(
    table: Table, number: int, earlier: DatabaseHistory
) -> Iterator[tuple[str, tuple[ColumnElement[bool], ...]]]:
    """Give the conditions on the rows of a table that an earlier history names."""
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
    """A row that an earlier history names, and that was not settled before `at`."""

    at: datetime
    in_any_state: ColumnElement[bool]
    """Whether it is there. Not another row of the event that came later, as after a restore."""
    unchanged: ColumnElement[bool] | None = None


def _proofs(table: Table, number: int, earlier: DatabaseHistory) -> Iterator[_Proof]:
    """Give the last settlement and the latest open row of a table: see the text of this module."""
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
    """Look into each index of open rows: none of the outbox has all of them."""
    c = table.c
    latest = select(c.event_id, c.seq).order_by(c.seq.desc()).limit(1)
    found = [row for part in open_parts(table) for row in connection.execute(latest.where(part))]
    if not found:
        return None
    last = max(found, key=lambda row: row.seq)
    return OpenRow(event_id=last.event_id, seq=last.seq)


def _latest_settled(connection: Connection, table: Table, now: datetime) -> SettledRow | None:
    """Look back further and further; a time to come was set by hand, and would stay the latest."""
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
