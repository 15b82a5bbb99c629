"""The outbox port over SQLAlchemy: the caller's side and the relay's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from operator import itemgetter
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, Row, Update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shieldtx.buffer import Posting
from shieldtx.errors import LocalRollbackFailed, TransactionRefused
from shieldtx.ports import Change, Claim, Claimed, Named, Settlement
from shieldtx.store.delayed_store import SqlDelayedStore
from shieldtx.store.dialects import dialect_of
from shieldtx.store.lent_session import check_intact, commits_refused, lend
from shieldtx.store.low_water import LowWater
from shieldtx.store.refusals import refusal_of
from shieldtx.store.single import for_single_statements
from shieldtx.store.statements import backlog, claim, delayed, leases
from shieldtx.store.statements import outbox as sql
from shieldtx.store.statements.envelopes import ENVELOPE_WIDTH, envelope_of
from shieldtx.store.tables import Tables

# The columns of a claim behind those of the envelope.
_SEQ, _ATTEMPTS, _DOUBT, _WAITING, _CHOSEN, _LEFT, _ADDRESS, _SIGHT = range(
    ENVELOPE_WIDTH, ENVELOPE_WIDTH + 8
)


_CLAIMS_IN_HAND = 4


class SqlOutboxWriter:
    """Writes rows over connections of the caller (the port OutboxWriter)."""

    def __init__(self, tables: Tables, *, shards: int) -> None:
        self._tables = tables
        self._shards = shards
        # One a dialect: a statement costs more to build than to run.
        self._insert = cache(partial(sql.insert, tables))
        self._backlog = cache(partial(backlog.events, tables))

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows at once; raises EventRefused for a business key used before."""
        dialect = dialect_of(connection.dialect)
        rows = [sql.parameters_of(p, dialect, shards=self._shards) for p in postings]
        try:
            connection.execute(self._insert(dialect), rows)
        except IntegrityError as error:
            raise refusal_of(error, [posting.envelope for posting in postings]) or error from error

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, among the latest of all topics."""
        statement = self._backlog(dialect_of(connection.dialect))
        found = connection.scalars(statement, backlog.parameters(topic, upto))
        return int(found.one())

    def refuse_autocommit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself."""
        if dialect_of(connection.dialect).is_autocommit(connection):
            raise TransactionRefused(
                "the connection is in AUTOCOMMIT, so the event would outlive its data; "
                "use a connection with transactions"
            )

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._single = for_single_statements(engine)
        self._clock = clock
        self._low_water = LowWater(clock)
        # Run for each batch, and therefore built once.
        self._claim = claim.claim(tables, self._dialect)
        self._processed = sql.processed_there(tables, self._dialect)
        self._until_due = delayed.until_due(tables, self._dialect)
        self._addresses: dict[UUID, dict[UUID, str]] = {}
        """Where the rows lie that were claimed with a token, until they are settled."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Lease the next due rows of the relay's shards to it."""
        token = uuid4()
        low_water, began = self._low_water, self._clock()
        start = low_water.start()
        parameters = claim.parameters(
            relay=relay, token=token, limit=limit, start=start, known=low_water.shards
        )
        with self._single.begin() as connection:
            rows = connection.execute(self._claim, parameters).all()
        if not rows:
            low_water.note(start, None, 0, full=False, took=self._clock() - began)
            return Claim(token=token, events=[], lease_left=timedelta(0))
        sight = claim.sight_of(rows[0][_SIGHT])
        if sight is not None and sight.chosen > len(rows):
            return self._unclaim(token, [row[0] for row in rows])
        rows = _in_order(rows)
        last = max((row[_SEQ] for row in rows if not row[_WAITING]), default=0)
        low_water.note(
            start,
            sight,
            last,
            full=len(rows) >= limit,
            took=self._clock() - began,
        )
        while len(self._addresses) >= _CLAIMS_IN_HAND:
            # What was neither acknowledged nor given back has been failed row by row.
            del self._addresses[next(iter(self._addresses))]
        self._addresses[token] = {row[0]: row[_ADDRESS] for row in rows}
        events = [
            Claimed(envelope=envelope_of(row), attempts=row[_ATTEMPTS], unconfirmed=row[_DOUBT])
            for row in rows
        ]
        lease_left = timedelta(seconds=rows[0][_LEFT])
        return Claim(token=token, events=events, lease_left=lease_left)

    def _unclaim(self, token: UUID, ids: Sequence[UUID]) -> Claim:
        """Give back a claim of fewer rows than were chosen, and leave them to the next.

        The last owner of the others, back from a standstill, was writing down how they ended while
        the claim waited for their locks. Of a key, they come before what was claimed.
        """
        with self._single.begin() as connection:
            connection.execute(sql.unclaim(self._tables, self._dialect, token, ids))
        self._low_water.forget()
        return Claim(token=token, events=[], lease_left=timedelta(0))

    def until_due(self, *, relay: str, since: timedelta, within: timedelta) -> timedelta | None:
        """Return how long until the next row of the relay's shards is due; None: none is soon."""
        asked = delayed.until_due_parameters(
            relay=relay, since=since.total_seconds(), within=within.total_seconds()
        )
        with self._single.begin() as connection:
            seconds = connection.scalar(self._until_due, asked)
        return None if seconds is None else timedelta(seconds=seconds)

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Give back what is leased in the relay's shards, and rename it, in one transaction."""
        t, d = self._tables, self._dialect
        with self._engine.begin() as connection:
            # Apart, so that the second statement sees what a claim did that the first waited for.
            shards = connection.scalars(leases.held(t, relay=relay)).all()
            withdrawn = connection.execute(sql.withdraw(t, d, shards)).rowcount
            connection.execute(leases.hand_over(t, relay=relay, to=renamed))
            # Under its new name it announces itself with the next renewal.
            connection.execute(leases.forget(t, relay=relay))
        self._low_water.forget()
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
        engine = self._engine if statements else self._single
        with engine.begin() as connection:
            count = self._settle_processed(connection, token, s.processed) if s.processed else 0
            count += sum(connection.execute(statement).rowcount for statement in statements)
        self._addresses.pop(token, None)
        if statements or count < len(settlement):
            self._low_water.forget()
        return count

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
        statement = sql.failed(self._tables, self._dialect, token, event_id, reason=reason)
        with lend(self._engine, "local rollback") as (session, connection):
            if connection.execute(statement).rowcount != 1:
                return False
            if local_rollback is not None:
                try:
                    with commits_refused(session):
                        local_rollback(session)
                    check_intact(session)
                    # Here, because constraints and hooks may wait for the COMMIT to object.
                    session.commit()
                except Exception as error:
                    raise LocalRollbackFailed(
                        f"local rollback failed: {type(error).__name__}: {error}"
                    ) from error
            return True


def _in_order(rows: Sequence[Row[*tuple[Any, ...]]]) -> list[Row[*tuple[Any, ...]]]:
    """Return claimed rows as they are to be sent: delayed ones by their time, others by `seq`."""
    chosen = [row for row in rows if row[_CHOSEN] is not None]
    others = [row for row in rows if row[_CHOSEN] is None] if chosen else rows
    chosen.sort(key=itemgetter(_CHOSEN, _SEQ))
    return chosen + sorted(others, key=itemgetter(_SEQ))
