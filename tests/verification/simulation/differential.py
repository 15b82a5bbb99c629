"""The stores in memory compared with those on a database: both have to behave alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from shieldtx.domain.events import Envelope
from shieldtx.errors import EventRefused, LateTransaction, LeaseLost, LocalRollbackFailed
from tests.verification.simulation.database import Clock, Database, InboxRow, Shard, Transaction
from tests.verification.simulation.half_messages import MemoryBarrier, MemoryHalfMessageStore
from tests.verification.simulation.inbox import MemoryInboxStore, UniqueViolation
from tests.verification.simulation.outbox import MemoryLeaseStore, MemoryOutboxStore
from tests.verification.simulation.pauses import MemoryPauseStore
from tests.verification.simulation.retention import MemoryRetentionStore
from tests.verification.simulation.sql_stores import SHARDS, SqlStores


class Memory:
    """The stores in memory."""

    def __init__(self, clock: Clock, make_database: Callable[..., Database] = Database) -> None:
        self.database = make_database(clock=clock, shards=[Shard(n) for n in range(SHARDS)])
        self.outbox = MemoryOutboxStore(self.database, source="A")
        self.dead = set[str]()
        """The relays whose process has died."""
        self.leases = MemoryLeaseStore(self.database, has_died=lambda relay: relay in self.dead)
        self.inbox = MemoryInboxStore(self.database)
        self.pauses = MemoryPauseStore(self.database)
        self.purge = MemoryRetentionStore(self.database, wall_clock=lambda: clock.now)
        self.half_messages = MemoryHalfMessageStore(self.database)
        self.barrier = MemoryBarrier(self.database)

    def write(
        self, envelope: Envelope, delay: float, before_commit: Callable[[], None] = lambda: None
    ) -> None:
        with self.database.transaction() as transaction:
            self.insert(transaction, envelope, delay)
            before_commit()

    def insert(self, transaction: Transaction, envelope: Envelope, delay: float = 0.0) -> None:
        """Write an event in an open transaction."""
        self.database.insert_outbox(transaction, envelope, delay=delay)

    def run_local(self, event_id: UUID, *, commits: bool) -> None:
        """Run a local transaction that enters the barrier."""
        with self.database.transaction() as transaction:
            self.barrier.enter(transaction, event_id)
            _ = 1 // commits

    def pause(self, group: str, event_type: str, *, reason: str) -> None:
        """Pause a type as an operator."""
        self.pauses.pause(group, event_type, reason=reason)

    def resume(self, group: str, event_type: str) -> int:
        """End pauses of a type as an operator."""
        return self.pauses.resume(group, event_type)

    def replay(self, row: InboxRow) -> None:
        """Let an operator replay a row, if it is DEAD."""
        self.inbox.replay(row)

    def content(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return everything on which both sides have to agree, in the order of the sequences."""
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
            "pauses": [
                (*key, row.by, row.reason, row.probe_at, row.probes, row.token is not None)
                for key, row in sorted(db.pauses.rows.items())
            ],
        }


class BothStores:
    """Does everything twice, and compares the results."""

    def __init__(self, sql: SqlStores, make_database: Callable[..., Database] = Database) -> None:
        self.clock = Clock()
        self.memory = Memory(self.clock, make_database)
        self.sql = sql
        sql.begin(self.clock)
        self._ids = 0

    def new_id(self) -> UUID:
        """Make an id that grows with time."""
        self._ids += 1
        return UUID(int=(int(self.clock.now * 1000) << 80) + self._ids)

    def both(self, act: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Run the same on both; they return or raise alike, and agree on all rows afterwards."""
        self.sql.keep_time()
        answers = outcome_of(act, self.memory), outcome_of(act, self.sql)
        kinds = [type(answer) for answer in answers]
        assert kinds[0] is kinds[1], answers
        self.compare_rows()
        return answers

    def compare_rows(self) -> None:
        """Expect that both have the same committed rows."""
        mine, theirs = self.memory.content(), self.sql.content()
        for name, rows in theirs.items():
            assert mine[name] == rows, (name, set(mine[name]) ^ set(rows))

    def same(self, act: Callable[[Any], Any]) -> Any:
        """Run the same on both, and expect the same answer."""
        mine, theirs = self.both(act)
        assert mine == theirs
        return mine


def outcome_of(act: Callable[[Any], Any], side: Any) -> Any:
    """Return the answer of a side, or the name of an error that a caller may get."""
    try:
        return act(side)
    except (UniqueViolation, IntegrityError):
        return "unique violation"
    except EventRefused as error:
        return f"EventRefused: {error.field}"
    except (LateTransaction, LeaseLost, LocalRollbackFailed, ArithmeticError) as error:
        return type(error).__name__
