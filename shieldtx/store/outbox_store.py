"""The outbox port over SQLAlchemy: the caller's side and the relay's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from operator import itemgetter
from sys import maxsize
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, Row, Update, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from shieldtx.domain.reasons import reason_of
from shieldtx.errors import LocalRollbackFailed, TransactionRefused
from shieldtx.outbox.session_buffer import Posting
from shieldtx.ports import BATCH_BYTES, Change, Claim, Claimed, Named, Settlement
from shieldtx.store.admission import admit
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.delayed_events import SqlDelayedStore
from shieldtx.store.dialects import autocommit_engine, dialect_named, dialect_of, is_known
from shieldtx.store.guarded_session import commits_refused, hold, lend, settle
from shieldtx.store.low_water_mark import LowWater
from shieldtx.store.refusals import refusal_of
from shieldtx.store.shard_count import ShardCount
from shieldtx.store.statements import backlog, claim, delayed_events, shard_leases
from shieldtx.store.statements import outbox as sql
from shieldtx.store.statements.blocked import Key
from shieldtx.store.statements.envelope_columns import ENVELOPE_WIDTH, envelope_of
from shieldtx.store.tables import Tables

# The columns of a claim behind those of the envelope.
_SEQ, _SHARD, _ATTEMPTS, _DOUBT, _WAITING, _CHOSEN, _LEFT, _ADDRESS, _SIGHT = range(
    ENVELOPE_WIDTH, ENVELOPE_WIDTH + 9
)


_PAYLOAD, _KEY = 4, 8
"""Of the columns of the envelope."""

_CLAIMS_IN_HAND = 4


class SqlOutboxWriter:
    """Writes rows over connections of the caller (the port OutboxWriter)."""

    def __init__(self, tables: Tables, *, shards: int | None = None) -> None:
        """Write into the shards of the tables; `shards` is the number that the settings expect."""
        self._tables = tables
        self._shards = ShardCount(tables, setting=shards)
        # One a dialect, by its name: a statement costs more to build than to run.
        self._insert = cache(lambda name: sql.insert(tables, dialect_named(name)))
        # Sessions that read from replicas take UPDATE and DELETE for writing; not all know INSERT.
        self.routed_by = update(tables.outbox)
        self._backlog = cache(lambda name: backlog.events(tables, dialect_named(name)))

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows at once.

        Raises EventRefused for a business key used before, ConfigurationError where the settings
        name another number of shards than the tables have.
        """
        dialect = dialect_of(connection.dialect)
        shards = self._shards.of(connection)
        rows = [sql.parameters_of(p, dialect, shards=shards) for p in postings]
        try:
            connection.execute(self._insert(dialect.name), rows)
        except IntegrityError as error:
            self._shards.refuse(error, connection)
            raise refusal_of(error, [posting.envelope for posting in postings]) or error from error

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, among the latest of all topics."""
        statement = self._backlog(connection.dialect.name)
        found = connection.scalars(statement, backlog.parameters(topic, upto))
        return int(found.one())

    def examine(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection in AUTOCOMMIT, or with other schemas."""
        admit(connection, self._tables.outbox, or_else="the event would outlive its data")

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction may have changed its database; of a foreign one, yes.

        Raises TransactionRefused where the server cannot be asked.
        """
        if not is_known(connection.dialect):
            return True
        try:
            return dialect_of(connection.dialect).may_have_written(connection)
        except DBAPIError as error:
            raise TransactionRefused(
                "a statement failed in another database of the session, so its part of the "
                "transaction is rolled back, and whether anything is lost with it is unknown: "
                "run what may fail in a savepoint or in a session of its own"
            ) from error

    def cancel(self, connection: Connection, event: Named, *, who: str) -> Change:
        """Discard a delayed event that is not due yet, in somebody's name."""
        return SqlDelayedStore(self._tables).cancel(connection, event, who=who)


class SqlOutboxStore:
    """Claims and settles rows in transactions of its own (the port OutboxStore)."""

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        *,
        source: str | None = None,
        batch_bytes: int = BATCH_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Claim rows of a `source` (None: of any), and up to so many bytes of them at a time."""
        self._source = source
        self._batch_bytes = batch_bytes
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._autocommit = autocommit_engine(engine)
        self._clock = clock
        self._low_water = LowWater(clock)
        self._blocked = BlockedRows(engine, tables, self._dialect, clock, source=source)
        self._claim_took = 0.0
        # Run for each batch, and therefore built once.
        self._claim = claim.claim(tables, self._dialect, of_source=source is not None)
        self._processed = sql.processed_there(tables, self._dialect)
        self._until_due = delayed_events.until_due(tables, self._dialect)
        self._addresses: dict[UUID, dict[UUID, str]] = {}
        """Where the rows lie that were claimed with a token, until they are settled."""
        self._holders: dict[UUID, dict[UUID, Key]] = {}
        """The keys of those among them that held their key."""
        self._first: dict[UUID, int] = {}
        """The lowest number among those of a token that were in the line."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Lease the next due rows of the relay's shards to it."""
        token = uuid4()
        if self._blocked.tend(relay, claim_took=self._claim_took):
            self._low_water.forget()
        low_water, began = self._low_water, self._clock()
        start = low_water.start()
        parameters = claim.parameters(
            relay=relay,
            token=token,
            limit=limit,
            limit_bytes=self._batch_bytes,
            start=start,
            known=low_water.shards,
            fence=self._blocked.fence.seq,
            fenced=self._blocked.fence.shards,
            source=self._source,
        )
        with self._autocommit.begin() as connection:
            rows = connection.execute(self._claim, parameters).all()
        self._claim_took = self._clock() - began
        if not rows:
            low_water.note(start, None, 0, full=False, took=self._clock() - began)
            return Claim(token=token, events=[], lease_left=timedelta(0))
        sight = claim.sight_of(rows[0][_SIGHT])
        if sight is not None and sight.chosen > len(rows):
            return self._unclaim(token, [row[0] for row in rows])
        rows = _in_order(rows)
        last = max((row[_SEQ] for row in rows if not row[_WAITING]), default=0)
        # A character has up to four bytes.
        cut = sum(len(row[_PAYLOAD]) for row in rows) * 4 >= self._batch_bytes
        low_water.note(
            start,
            sight,
            last,
            full=cut or len(rows) >= limit,
            took=self._clock() - began,
        )
        while len(self._addresses) >= _CLAIMS_IN_HAND:
            # What was neither acknowledged nor given back has been failed row by row.
            del self._addresses[next(iter(self._addresses))]
        while len(self._holders) >= _CLAIMS_IN_HAND:
            del self._holders[next(iter(self._holders))]
        self._addresses[token] = {row[0]: row[_ADDRESS] for row in rows}
        while len(self._first) >= _CLAIMS_IN_HAND:
            del self._first[next(iter(self._first))]
        self._first[token] = min((row[_SEQ] for row in rows if not row[_WAITING]), default=maxsize)
        if holders := {row[0]: (row[_SHARD], row[_KEY]) for row in rows if _holds_its_key(row)}:
            self._holders[token] = holders
        events = [
            Claimed(envelope=envelope_of(row), attempts=row[_ATTEMPTS], unconfirmed=row[_DOUBT])
            for row in rows
        ]
        lease_left = timedelta(seconds=rows[0][_LEFT])
        return Claim(token=token, events=events, lease_left=lease_left, cut=cut)

    def _unclaim(self, token: UUID, ids: Sequence[UUID]) -> Claim:
        """Give back a claim of fewer rows than were chosen, and leave them to the next.

        The last owner of the others, back from a standstill, was writing down how they ended while
        the claim waited for their locks. Of a key, they come before what was claimed.
        """
        with self._autocommit.begin() as connection:
            connection.execute(sql.unclaim(self._tables, self._dialect, token, ids))
        self._look_everywhere()
        return Claim(token=token, events=[], lease_left=timedelta(0))

    def until_due(self, *, relay: str, since: timedelta, within: timedelta) -> timedelta | None:
        """Return how long until the next row of the relay's shards is due; None: none is soon."""
        asked = delayed_events.until_due_parameters(
            relay=relay, since=since.total_seconds(), within=within.total_seconds()
        )
        with self._autocommit.begin() as connection:
            seconds = connection.scalar(self._until_due, asked)
        return None if seconds is None else timedelta(seconds=seconds)

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Give back what is leased in the relay's shards, and rename it, in one transaction."""
        t, d = self._tables, self._dialect
        with self._engine.begin() as connection:
            # Apart, so that the second statement sees what a claim did that the first waited for.
            shards = connection.scalars(shard_leases.held(t, relay=relay)).all()
            withdrawn = connection.execute(sql.withdraw(t, d, shards)).rowcount
            connection.execute(shard_leases.hand_over(t, relay=relay, to=renamed))
            # Under its new name it announces itself with the next renewal.
            connection.execute(shard_leases.forget(t, relay=relay))
        self._look_everywhere()
        self._addresses.clear()
        return withdrawn

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Write down how a batch ended, in one transaction."""
        t, d, s = self._tables, self._dialect, settlement
        statements: list[Update] = []
        for ids, unconfirmed in ((s.unsent, False), (s.unconfirmed, True)):
            if ids:
                statements.append(
                    sql.release(t, d, token, ids, reason=s.reason, unconfirmed=unconfirmed)
                )
        statements += [
            sql.retry(t, d, token, r.event_id, delay=r.delay, reason=r.reason) for r in s.retries
        ]
        # Mostly all were acknowledged: one statement, for which BEGIN and COMMIT would take longer.
        engine = self._engine if statements else self._autocommit
        with engine.begin() as connection:
            count = self._settle_processed(connection, token, s.processed) if s.processed else 0
            count += sum(connection.execute(statement).rowcount for statement in statements)
        self._addresses.pop(token, None)
        if held := self._holders.get(token):
            self._blocked.freed(held[id_] for id_ in s.processed if id_ in held)
        if statements or count < len(settlement):
            self._low_water.forget()
        if s.unsent or s.unconfirmed or count < len(settlement):
            self._blocked.fence.retreat(self._first.get(token, 0))
        return count

    def _look_everywhere(self) -> None:
        """Let the next claim begin at the beginning."""
        self._low_water.forget()
        self._blocked.fence.forget()

    def _settle_processed(self, connection: Connection, token: UUID, ids: Sequence[UUID]) -> int:
        """Settle rows where they lay when they were claimed, or wherever they lie now.

        By their addresses only the whole of a claim: when somebody has rewritten the table, a
        neighbour of the same token may lie where one of them lay.
        """
        there = self._addresses.get(token, {}) if self._dialect.has_addresses else {}
        count = 0
        if len(there) == len(ids):
            where = [there[event_id] for event_id in ids]
            parameters = sql.place_parameters(token, where)
            count = connection.execute(self._processed, parameters).rowcount
        if count < len(ids):
            # Taken over by another relay, or moved by somebody who rewrote the table.
            count += connection.execute(
                sql.processed(self._tables, self._dialect, token, ids)
            ).rowcount
        return count

    def fail(
        self,
        token: UUID,
        event_id: UUID,
        *,
        reason: str,
        local_rollback: Callable[[Session], None] | None,
    ) -> bool:
        """Settle a row as FAILED together with its local rollback."""
        t, d = self._tables, self._dialect
        statement = sql.failed(t, d, token, event_id, reason=reason)
        with lend(self._engine, "local rollback") as (session, connection):
            held = hold(connection, sql.held(t, d, token, event_id), {})
            if held.rows != 1:
                return False
            try:
                if local_rollback is not None:
                    with commits_refused(session):
                        local_rollback(session)
                settle(session, held, statement, {})
                # Here, because constraints and hooks may wait for the COMMIT to object.
                session.commit()
            except Exception as error:
                if local_rollback is None:
                    raise
                raise LocalRollbackFailed(f"local rollback failed: {reason_of(error)}") from error
        if (key := self._holders.get(token, {}).get(event_id)) is not None:
            self._blocked.freed([key])
        return True


def _holds_its_key(row: Row[*tuple[Any, ...]]) -> bool:
    """Whether a claimed row waited for its retry, at the head of its key."""
    return row[_WAITING] and row[_CHOSEN] is None and row[_KEY] is not None


def _in_order(rows: Sequence[Row[*tuple[Any, ...]]]) -> list[Row[*tuple[Any, ...]]]:
    """Return claimed rows as they are to be sent: delayed ones by their time, others by `seq`."""
    chosen = [row for row in rows if row[_CHOSEN] is not None]
    others = [row for row in rows if row[_CHOSEN] is None] if chosen else rows
    chosen.sort(key=itemgetter(_CHOSEN, _SEQ))
    return chosen + sorted(others, key=itemgetter(_SEQ))
