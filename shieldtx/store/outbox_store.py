"""The outbox port over SQLAlchemy: the caller's side and the relay's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, Update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shieldtx.buffer import Posting
from shieldtx.errors import EventRefused, LocalRollbackFailed, TransactionRefused
from shieldtx.events import shard_of
from shieldtx.outbox import flush_events
from shieldtx.ports import Claim, Claimed, Settlement
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import leases
from shieldtx.store.statements import outbox as sql
from shieldtx.store.statements.envelopes import ENVELOPE_WIDTH, envelope_of, values_of
from shieldtx.store.tables import Tables


class SqlOutboxWriter:
    """Writes rows over connections of the caller (the port OutboxWriter)."""

    def __init__(self, tables: Tables, *, shards: int) -> None:
        self._tables = tables
        self._shards = shards
        # One a dialect: a statement costs more to build than to run.
        self._insert = cache(partial(sql.insert, tables))

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows at once; raises EventRefused for a business key used before."""
        dialect = dialect_of(connection.dialect)
        rows = [
            values_of(posting.envelope)
            | dialect.next_in_sequence()
            | {
                "shard": shard_of(posting.envelope.key, posting.envelope.id, self._shards),
                "waiting": bool(posting.delay) or posting.at is not None,
                "delay_seconds": posting.delay.total_seconds() if posting.delay else 0.0,
                "at": posting.at,
            }
            for posting in postings
        ]
        try:
            connection.execute(self._insert(dialect), rows)
        except IntegrityError as error:
            raise _refusal_of(error, postings) or error from error

    def refuse_autocommit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself."""
        if dialect_of(connection.dialect).is_autocommit(connection):
            raise TransactionRefused(
                "the connection is in AUTOCOMMIT, so the event would outlive its data; "
                "use a connection with transactions"
            )

    def cancel(self, connection: Connection, event_id: UUID) -> bool:
        """Discard a delayed event that is not due yet."""
        dialect = dialect_of(connection.dialect)
        return connection.execute(sql.cancel(self._tables, dialect, event_id)).rowcount == 1


def _refusal_of(error: IntegrityError, postings: Sequence[Posting]) -> EventRefused | None:
    """Say which field of the events was written before; None for any other violation."""
    # PostgreSQL names the index, SQLite the columns.
    said = str(error.orig)
    envelopes = [posting.envelope for posting in postings]
    if "shield_outbox_biz_key_key" in said or "shield_outbox.biz_key" in said:
        keys = sorted({f"{e.type} {e.biz_key}" for e in envelopes if e.biz_key is not None})
        return EventRefused(
            "biz_key",
            f"one of {', '.join(keys)} was written before; a business key is for event types "
            "that happen once per object (leave it out for the others)",
        )
    if "shield_outbox_pkey" in said or "shield_outbox.event_id" in said:
        ids = ", ".join(str(e.id) for e in envelopes)
        return EventRefused("id", f"one of {ids} was written before; make an Event for each")
    return None


class SqlOutboxStore:
    """Claims and settles rows in transactions of its own (the port OutboxStore)."""

    def __init__(self, engine: Engine, tables: Tables, *, shards: int) -> None:
        self._engine = engine
        self._tables = tables
        self._shards = shards
        self._dialect = dialect_of(engine.dialect)
        # A claim is one statement, and a transaction by itself.
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._turn = 0

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Lease the next due rows of the relay's shards to it."""
        token = uuid4()
        self._turn = (self._turn + 1) % self._shards
        statement = sql.claim(
            self._tables,
            self._dialect,
            relay=relay,
            token=token,
            limit=limit,
            turn=self._turn,
            shards=self._shards,
        )
        with self._single.connect() as connection:
            rows = connection.execute(statement).all()
        rows = sorted(rows, key=lambda row: row[ENVELOPE_WIDTH])  # by seq
        events = [
            Claimed(envelope=envelope_of(row), attempts=attempts, unconfirmed=unconfirmed)
            for row in rows
            for _, attempts, unconfirmed, _ in [row[ENVELOPE_WIDTH:]]
        ]
        left = min((row[-1] for row in rows), default=0.0)
        return Claim(token=token, events=events, lease_left=timedelta(seconds=left))

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
        return withdrawn

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Write down how a batch ended, in one transaction."""
        t, d, s = self._tables, self._dialect, settlement
        statements: list[Update] = []
        if s.processed:
            statements.append(sql.processed(t, d, token, s.processed))
        for ids, unconfirmed in ((s.unsent, False), (s.unconfirmed, True)):
            if ids:
                statements.append(
                    sql.release(t, d, token, ids, reason=s.reason, unconfirmed=unconfirmed)
                )
        statements += [
            sql.retry(t, d, token, r.event_id, delay=r.delay, reason=r.reason) for r in s.retries
        ]
        with self._engine.begin() as connection:
            return sum(connection.execute(statement).rowcount for statement in statements)

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
        with Session(self._engine) as session, session.begin():
            if session.connection().execute(statement).rowcount != 1:
                return False
            if local_rollback is not None:
                try:
                    local_rollback(session)
                    session.flush()
                    flush_events(session)
                except Exception as error:
                    raise LocalRollbackFailed(
                        f"local rollback failed: {type(error).__name__}: {error}"
                    ) from error
            return True
