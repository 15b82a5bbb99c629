"""The stores in memory beside those on SQLite, with one clock: what one does, both have to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, StaticPool, and_, create_engine, delete, event, select, update
from sqlalchemy.exc import IntegrityError

from shieldtx.domain.events import Envelope
from shieldtx.errors import LateTransaction, LeaseLost, LocalRollbackFailed
from shieldtx.ports.outbox import Posting
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.retention import SqlRetentionStore
from shieldtx.store.schema import Schema
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.tables import Tables, tables
from tests.verification.simulation.database import EPOCH, Clock, Database, Shard
from tests.verification.simulation.half_messages import PLAN, MemoryBarrier, MemoryHalfMessageStore
from tests.verification.simulation.inbox import MemoryInboxStore, UniqueViolation
from tests.verification.simulation.outbox import MemoryLeaseStore, MemoryOutboxStore
from tests.verification.simulation.retention import MemoryRetentionStore

SHARDS = 2


class Memory:
    """The stores in memory."""

    def __init__(self, clock: Clock) -> None:
        self.database = Database(clock=clock, shards=[Shard(n) for n in range(SHARDS)])
        self.outbox = MemoryOutboxStore(self.database)
        self.leases = MemoryLeaseStore(self.database)
        self.inbox = MemoryInboxStore(self.database)
        self.purge = MemoryRetentionStore(self.database, wall_clock=lambda: clock.now)
        self.half_messages = MemoryHalfMessageStore(self.database)
        self.barrier = MemoryBarrier(self.database)

    def write(self, envelope: Envelope, delay: float) -> None:
        with self.database.transaction() as transaction:
            self.database.insert_outbox(transaction, envelope, delay=delay)

    def run_local(self, event_id: UUID, *, commits: bool) -> None:
        """Run a local transaction that enters the barrier."""
        with self.database.transaction() as transaction:
            self.barrier.enter(transaction, event_id)
            _ = 1 // commits

    def content(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all that both sides have to agree on, in the order of the sequences."""
        db = self.database
        outbox = sorted(db.outbox.values(), key=lambda row: row.seq)
        inbox = sorted(db.inbox.values(), key=lambda row: row.seq)
        return {
            "outbox": [
                (
                    *(row.envelope.id, row.shard, row.status, row.attempts, row.waiting),
                    *(row.holds_key, row.due_at, row.unconfirmed, row.token is not None),
                    *(row.lease_until, row.settled_at, row.last_error),
                )
                for row in outbox
            ],
            "inbox": [
                (
                    *(row.envelope.id, row.envelope.source, row.group, row.status, row.attempts),
                    *(row.due_at, row.token is not None, row.lease_until, row.settled_at),
                    *(row.together, row.compensated_id, row.last_error),
                )
                for row in inbox
            ],
            "shards": [(s.number, s.owner, s.epoch, s.lease_until or None) for s in db.shards],
            "relays": sorted(db.relays.items()),
            "parked": sorted(db.parked),
            "half_messages": [
                (row.envelope.id, row.checks, row.check_at)
                for row in outbox
                if row.checks is not None
            ],
            "barrier": sorted(db.barrier.items()),
        }


class Sqlite:
    """The stores on SQLite, whose `now` is the simulation's."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.tables: Tables = tables()
        self.engine: Engine = create_engine("sqlite://", poolclass=StaticPool)
        event.listen(self.engine, "connect", self._tell_the_time)
        Schema(self.engine, shards=SHARDS).upgrade()
        self.begin(self.clock)

    def begin(self, clock: Clock) -> None:
        """Empty the tables, and go by a new clock."""
        self.clock = clock
        with self.engine.begin() as connection:
            for table in self.tables.metadata.sorted_tables:
                if table is not self.tables.shard:
                    connection.execute(delete(table))
            connection.execute(
                update(self.tables.shard).values(owner=None, epoch=0, lease_until=None)
            )
        self.writer = SqlOutboxWriter(self.tables, shards=SHARDS)
        self.outbox = SqlRelayStore(self.engine, self.tables)
        self.leases = SqlLeaseStore(self.engine, self.tables)
        self.inbox = SqlInboxStore(self.engine, self.tables)
        self.purge = SqlRetentionStore(self.engine, self.tables)
        self.half_messages = SqlHalfMessageStore(self.engine, self.tables, shards=SHARDS, plan=PLAN)
        self.barrier = SqlBarrier(self.engine, self.tables, patience=timedelta(seconds=1))

    def write(self, envelope: Envelope, delay: float) -> None:
        posting = Posting(envelope=envelope, delay=timedelta(seconds=delay) if delay else None)
        with self.engine.begin() as connection:
            self.writer.insert(connection, [posting])

    def run_local(self, event_id: UUID, *, commits: bool) -> None:
        """Run a local transaction that enters the barrier."""
        with self.engine.begin() as connection:
            self.barrier.enter(connection, [event_id])
            _ = 1 // commits

    def content(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all that both sides have to agree on, in the order of the sequences."""
        o, i, s = self.tables.outbox.c, self.tables.inbox.c, self.tables.shard.c
        r, p, b = self.tables.relay.c, self.tables.parked.c, self.tables.barrier.c
        statements = {
            "outbox": select(
                *(o.event_id, o.shard, o.status, o.attempts, o.waiting),
                # Without the blocked ones, of which memory knows nothing.
                *(and_(o.holds_key, o.waiting), o.due_at),
                *(o.unconfirmed, o.lease_token.is_not(None), o.lease_until, o.settled_at),
                o.last_error,
            ).order_by(o.seq),
            "inbox": select(
                *(i.event_id, i.source, i.consumer_group, i.status, i.attempts, i.due_at),
                *(i.lease_token.is_not(None), i.lease_until, i.settled_at),
                *(i.together, i.compensated_id),
                i.last_error,
            ).order_by(i.seq),
            "shards": select(s.shard, s.owner, s.epoch, s.lease_until).order_by(s.shard),
            "relays": select(r.relay, r.alive_until).order_by(r.relay),
            "parked": select(p.consumer_group, p.topic, p.record_partition, p.record_offset),
            "half_messages": select(o.event_id, o.checks, o.check_at)
            .where(o.checks.is_not(None))
            .order_by(o.seq),
            "barrier": select(b.event_id, b.committed).order_by(b.event_id),
        }
        with self.engine.connect() as connection:
            found = {
                name: [tuple(map(_plain, row)) for row in connection.execute(statement)]
                for name, statement in statements.items()
            }
        found["parked"].sort()
        return found

    def close(self) -> None:
        self.engine.dispose()

    def _tell_the_time(self, connection: sqlite3.Connection, record: object) -> None:  # noqa: ARG002  SQLAlchemy's signature
        connection.create_function("strftime", -1, self._strftime)

    def _strftime(self, form: str, base: str, shift: str = "+0 seconds") -> str:
        assert (form, base) == ("%Y-%m-%d %H:%M:%f000", "now")
        seconds = self.clock.now + float(shift.removesuffix(" seconds"))
        return f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S.%f}"


class BothStores:
    """Does everything twice, and compares what came of it."""

    def __init__(self, sqlite: Sqlite) -> None:
        self.clock = Clock()
        self.memory = Memory(self.clock)
        self.sqlite = sqlite
        sqlite.begin(self.clock)
        self._ids = 0

    def new_id(self) -> UUID:
        """Make an id that grows with time."""
        self._ids += 1
        return UUID(int=(int(self.clock.now * 1000) << 80) + self._ids)

    def both(self, act: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Let both do the same; they answer, or raise, alike, and agree on all rows afterwards."""
        answers = _outcome_of(act, self.memory), _outcome_of(act, self.sqlite)
        kinds = [type(answer) for answer in answers]
        assert kinds[0] is kinds[1], answers
        mine, theirs = self.memory.content(), self.sqlite.content()
        for name, rows in theirs.items():
            assert mine[name] == rows, name
        return answers

    def same(self, act: Callable[[Any], Any]) -> Any:
        """Let both do the same, and give the same answer."""
        mine, theirs = self.both(act)
        assert mine == theirs
        return mine


def _outcome_of(act: Callable[[Any], Any], side: Any) -> Any:
    try:
        return act(side)
    except (UniqueViolation, IntegrityError):
        return "unique violation"
    except (LateTransaction, LeaseLost, LocalRollbackFailed, ArithmeticError) as error:
        return type(error).__name__


def _plain(value: Any) -> Any:
    return (value - EPOCH).total_seconds() if isinstance(value, datetime) else value
