"""The shared state of a random history: the outbox, the clock, the random choices, the log."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select, update

from tests.contract.conftest import Stores
from tests.contract.store.test_blocked_rows import Clock

HELD = "held"
"""The key whose first event waits until the end, so that a fence always exists."""
NO_EVENT = UUID(int=0)
PAST = timedelta(minutes=1)


class Violation(AssertionError):
    """A history has broken a rule that every history must keep."""


class TickingClock(Clock):
    """Advances by itself, so that scans exceed their time in the middle."""

    step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@dataclass(kw_only=True)
class World:
    """One outbox, and the known facts about its events."""

    stores: Stores
    seed: int
    chance: random.Random
    keys: Sequence[str | None]
    source: str | None
    """The source of the events that relays claim; None: all sources."""
    clock: TickingClock = field(default_factory=TickingClock)
    head: UUID = NO_EVENT
    """The first event of the blocked key."""
    step: int = 0
    visible: dict[UUID, int] = field(default_factory=dict)
    """The step at which each event was committed."""
    put_back: set[UUID] = field(default_factory=set)
    """Events that an operator put back: later events of the key may overtake these."""
    unnoticed: set[UUID] = field(default_factory=set)
    """The put-back events that were not claimed since: a relay finds them by its next sweep."""
    log: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.log.append(f"{self.step}: {what}")

    def require(self, is_so: bool, what: str) -> None:
        """Raise a Violation that names the seed and the course of the history."""
        if not is_so:
            raise Violation("\n".join([f"seed {self.seed}: {what}", *self.log]))

    def open_rows(self) -> Sequence[Any]:
        """Return the events that relays still have to publish, in the order of writing."""
        o = self.stores.tables.outbox
        is_chosen = (o.c.waiting & ~o.c.holds_key).label("is_chosen")
        columns = (o.c.event_id, o.c.seq, o.c.key, o.c.source, o.c.waiting, is_chosen)
        found = select(*columns).where(o.c.settled_at.is_(None), o.c.status != "HALF")
        if self.source is not None:
            found = found.where(o.c.source == self.source)
        with self.stores.engine.connect() as connection:
            return connection.execute(found.order_by(o.c.seq)).all()

    def some_event(self, *conditions: Any) -> UUID | None:
        o = self.stores.tables.outbox
        with self.stores.engine.connect() as connection:
            found = select(o.c.event_id).where(*conditions).order_by(o.c.seq)
            events = connection.scalars(found).all()
        return self.chance.choice(events) if events else None

    def make_due(self) -> None:
        o = self.stores.tables.outbox
        due = update(o).where(o.c.waiting, o.c.status == "INIT", o.c.event_id != self.head)
        with self.stores.engine.begin() as connection:
            connection.execute(due.values(due_at=o.c.created_at))

    def expire(self, relay: str) -> None:
        """Let the leases of a relay expire."""
        s, r, o = self.stores.tables.shard, self.stores.tables.relay, self.stores.tables.outbox
        past = datetime.now(UTC) - PAST
        with self.stores.engine.begin() as connection:
            owned = select(s.c.shard).where(s.c.owner == relay)
            rows = update(o).where(o.c.shard.in_(owned), o.c.lease_until.is_not(None))
            connection.execute(rows.values(lease_until=past))
            mine = update(s).where(s.c.owner == relay)
            connection.execute(mine.values(lease_until=past))
            alive = update(r).where(r.c.relay == relay)
            connection.execute(alive.values(alive_until=past))

    def expire_rows(self, events: Sequence[UUID]) -> None:
        """Let the leases of rows expire, as if their publishing took longer than a lease."""
        o = self.stores.tables.outbox
        rows = update(o).where(o.c.event_id.in_(events), o.c.lease_until.is_not(None))
        with self.stores.engine.begin() as connection:
            connection.execute(rows.values(lease_until=datetime.now(UTC) - PAST))

    def empty(self) -> None:
        """Begin with empty tables and shards that were never owned."""
        t = self.stores.tables
        with self.stores.engine.begin() as connection:
            connection.execute(t.outbox.delete())
            connection.execute(t.relay.delete())
            connection.execute(update(t.shard).values(owner=None, lease_until=None))
