"""The relay's side of the outbox: claims rows, and settles them after publication."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from sys import maxsize
from typing import TypeVar
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, Executable, Update
from sqlalchemy.orm import Session

from shieldtx.domain.reasons import reason_of
from shieldtx.errors import LocalRollbackFailed
from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.ports.relay import Claim, ClaimedEvent, Settlement
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.dialects import autocommit_engine, dialect_of
from shieldtx.store.guarded_session import commits_refused, guarded_session, lock_rows, settle
from shieldtx.store.low_water_mark import LowWaterMark
from shieldtx.store.statements import claim, delayed_events, shard_leases
from shieldtx.store.statements import outbox as sql
from shieldtx.store.statements.blocked import Key
from shieldtx.store.statements.claim import ClaimRow
from shieldtx.store.tables import Tables

_OPEN_CLAIMS = 4
"""The number of unsettled claims of which details are kept."""

_Value = TypeVar("_Value")


class SqlRelayStore:
    """Claims and settles rows in its own transactions (the port RelayStore)."""

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        *,
        source: str | None = None,
        batch_bytes: int = BATCH_BYTES,
        of_local_rollbacks: Engine | None = None,
        run_local_rollback: Callable[[Callable[[], bool]], bool] = lambda call: call(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Claim rows of a `source` (None: of any), up to `batch_bytes` at a time.

        Local rollbacks may take longer than a relay's lease, so they can have their own engine.
        """
        self._source = source
        self._batch_bytes = batch_bytes
        self._engine = engine
        self._of_local_rollbacks = of_local_rollbacks or engine
        self._run_local_rollback = run_local_rollback
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._autocommit = autocommit_engine(engine)
        self._clock = clock
        self._low_water = LowWaterMark(clock)
        self._blocked = BlockedRows(engine, tables, self._dialect, clock, source=source)
        self._claim_took = 0.0
        self._claim = claim.claim(tables, self._dialect, of_source=source is not None)
        self._processed = sql.processed_at_addresses(tables, self._dialect)
        self._until_due = delayed_events.until_due(tables, self._dialect)
        # By the tokens of unsettled claims.
        self._addresses: dict[UUID, dict[UUID, str]] = {}
        """The addresses of the rows when they were claimed."""
        self._holders: dict[UUID, dict[UUID, Key]] = {}
        """The keys of the rows that waited for a retry and held their key."""
        self._first_seq: dict[UUID, int] = {}
        """The lowest number among the rows of the main queue."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Lease the next due rows of the relay's shards to it."""
        token = uuid4()
        if self._blocked.run_if_due(relay, claim_took=self._claim_took):
            self._low_water.reset()
        start, began = self._low_water.start(), self._clock()
        rows = self._claim_rows(token, relay=relay, limit=limit, start=start)
        self._claim_took = took = self._clock() - began
        if not rows:
            self._low_water.record(start, None, 0, full=False, took=took)
            return Claim(token=token, events=[], lease_left=timedelta(0))
        snapshot = claim.snapshot_of(rows[0].snapshot)
        if snapshot is not None and snapshot.chosen > len(rows):
            return self._unclaim(token, [row.envelope.id for row in rows])
        rows = _in_order(rows)
        main_queue = [row.seq for row in rows if not row.waiting]
        # A character has up to four bytes.
        cut = sum([len(row.envelope.payload) for row in rows]) * 4 >= self._batch_bytes
        self._low_water.record(
            start,
            snapshot,
            max(main_queue, default=0),
            full=cut or len(rows) >= limit,
            took=took,
        )
        self._note_claimed(token, rows, first_seq=min(main_queue, default=maxsize))
        return Claim(
            token=token,
            events=[
                ClaimedEvent(
                    envelope=row.envelope, attempts=row.attempts, unconfirmed=row.unconfirmed
                )
                for row in rows
            ],
            lease_left=timedelta(seconds=rows[0].lease_left_s),
            cut=cut,
        )

    def _claim_rows(self, token: UUID, *, relay: str, limit: int, start: int) -> list[ClaimRow]:
        parameters = claim.parameters(
            relay=relay,
            token=token,
            limit=limit,
            limit_bytes=self._batch_bytes,
            start=start,
            known=self._low_water.shards,
            fence=self._blocked.fence.seq,
            fenced=self._blocked.fence.shards,
            source=self._source,
        )
        with self._autocommit.begin() as connection:
            rows = connection.execute(self._claim, parameters).all()
        return [claim.claim_row(row) for row in rows]

    def _note_claimed(self, token: UUID, rows: Sequence[ClaimRow], *, first_seq: int) -> None:
        _remember(self._addresses, token, {row.envelope.id: row.address for row in rows})
        _remember(self._first_seq, token, first_seq)
        holders = {
            row.envelope.id: (row.shard, row.envelope.key)
            for row in rows
            if row.waiting and row.chosen_due_at is None and row.envelope.key is not None
        }
        if holders:
            _remember(self._holders, token, holders)

    def _unclaim(self, token: UUID, ids: Sequence[UUID]) -> Claim:
        """Release a claim of fewer rows than were chosen, and leave the rows to the next claim.

        The former owner of the missing rows settled them after a standstill, while the claim waited
        for their locks. In the order of a key, those rows precede the claimed rows.
        """
        with self._autocommit.begin() as connection:
            connection.execute(sql.unclaim(self._tables, self._dialect, token, ids))
        self._start_from_the_beginning()
        return Claim(token=token, events=[], lease_left=timedelta(0))

    def until_due(self, *, relay: str, since: timedelta, within: timedelta) -> timedelta | None:
        """Return the time until the next row of the relay's shards is due; None if none is soon."""
        asked = delayed_events.until_due_parameters(
            relay=relay, since=since.total_seconds(), within=within.total_seconds()
        )
        with self._autocommit.begin() as connection:
            seconds = connection.scalar(self._until_due, asked)
        return None if seconds is None else timedelta(seconds=seconds)

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Release leased rows of the relay's shards and rename the relay, in one transaction."""
        t, d = self._tables, self._dialect
        with self._engine.begin() as connection:
            # Separate statements: the second sees the claim that the first has waited for.
            shards = connection.scalars(shard_leases.owned(t, relay=relay)).all()
            withdrawn = connection.execute(sql.withdraw(t, d, shards)).rowcount
            connection.execute(shard_leases.hand_over(t, relay=relay, to=renamed))
            # The next renewal announces the relay under its new name.
            connection.execute(shard_leases.forget(t, relay=relay))
        self._start_from_the_beginning()
        self._addresses.clear()
        return withdrawn

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Write back the outcomes of a batch, in one transaction."""
        s = settlement
        statements = self._unprocessed(token, s)
        # Mostly all rows were acknowledged: one statement is faster without BEGIN and COMMIT.
        engine = self._engine if statements else self._autocommit
        with engine.begin() as connection:
            count = self._settle_processed(connection, token, s.processed) if s.processed else 0
            count += sum(connection.execute(statement).rowcount for statement in statements)
        self._addresses.pop(token, None)
        if holders := self._holders.get(token):
            self._blocked.note_free_keys(holders[id_] for id_ in s.processed if id_ in holders)
        if statements or count < len(settlement):
            self._low_water.reset()
        if s.unsent or s.unconfirmed or count < len(settlement):
            self._blocked.fence.retreat(self._first_seq.get(token, 0))
        return count

    def _unprocessed(self, token: UUID, s: Settlement) -> list[Update]:
        """Return the statements for the rows that are to be sent again."""
        t, d = self._tables, self._dialect
        statements: list[Update] = []
        for ids, unconfirmed in ((s.unsent, False), (s.unconfirmed, True)):
            if ids:
                statements.append(
                    sql.release(t, d, token, ids, reason=s.reason, unconfirmed=unconfirmed)
                )
        statements += [
            sql.retry(t, d, token, r.event_id, delay=r.delay, reason=r.reason) for r in s.retries
        ]
        return statements

    def _start_from_the_beginning(self) -> None:
        """Make the next claim start at the beginning."""
        self._low_water.reset()
        self._blocked.fence.reset()

    def _settle_processed(self, connection: Connection, token: UUID, ids: Sequence[UUID]) -> int:
        """Settle rows by their addresses at the claim, or by their ids.

        Addresses are used only for all rows of a claim. After an operator has rewritten the table,
        another row of the same token may have the address of one of the rows.
        """
        known = self._addresses.get(token, {}) if self._dialect.has_addresses else {}
        count = 0
        if len(known) == len(ids):
            addresses = [known[event_id] for event_id in ids]
            parameters = sql.address_parameters(token, addresses)
            count = connection.execute(self._processed, parameters).rowcount
        if count < len(ids):
            # Another relay took rows over, or a rewrite of the table moved them.
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
        lock = sql.lock_row(t, d, token, event_id)
        if local_rollback is None:
            has_failed = _settle_failed(self._engine, lock, statement, None)
        else:
            engine = self._of_local_rollbacks
            has_failed = self._run_local_rollback(
                partial(_settle_failed, engine, lock, statement, local_rollback)
            )
        if not has_failed:
            return False
        if (key := self._holders.get(token, {}).get(event_id)) is not None:
            self._blocked.note_free_keys([key])
        return True


def _settle_failed(
    engine: Engine,
    lock: Executable,
    statement: Executable,
    local_rollback: Callable[[Session], None] | None,
) -> bool:
    """Settle a row as FAILED with its local rollback; False: it has another owner."""
    with guarded_session(engine, "local rollback") as (session, connection):
        locked = lock_rows(connection, lock, {})
        if locked.number != 1:
            return False
        try:
            if local_rollback is not None:
                with commits_refused(session):
                    local_rollback(session)
            settle(session, locked, statement, {})
            # Inside the block, because constraints and hooks may fail at the COMMIT.
            session.commit()
        except Exception as error:
            if local_rollback is None:
                raise
            raise LocalRollbackFailed(f"local rollback failed: {reason_of(error)}") from error
    return True


def _remember(values: dict[UUID, _Value], token: UUID, value: _Value) -> None:
    """Keep a value of a claim, for the latest claims only: failed rows are settled one by one."""
    while len(values) >= _OPEN_CLAIMS:
        del values[next(iter(values))]
    values[token] = value


def _in_order(rows: Sequence[ClaimRow]) -> list[ClaimRow]:
    """Return claimed rows in the order of sending: delayed rows by time, then others by `seq`."""
    delayed = [row for row in rows if row.chosen_due_at is not None]
    others = [row for row in rows if row.chosen_due_at is None] if delayed else rows
    delayed.sort(key=attrgetter("chosen_due_at", "seq"))
    return delayed + sorted(others, key=attrgetter("seq"))
