"""Services that write in transactions of any length, and operators that move events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.engine import RootTransaction

from shieldtx.domain.events import Envelope
from shieldtx.domain.schedule import Due
from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.ports.half_messages import NewHalfMessage
from shieldtx.ports.outbox import Posting
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import outbox as statements
from shieldtx.store.statements import repair
from tests.contract.histories.world import HELD, World
from tests.contract.store.test_blocked_rows import LATER
from tests.contract.store.test_outbox import envelope, write


@dataclass
class Late:
    """An open transaction, and the events that it wrote."""

    connection: Connection
    transaction: RootTransaction
    written: list[UUID]


class Services:
    """All changes to an outbox except those of its relays."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stores = world.stores
        self.chance = world.chance
        self.late: list[Late] = []
        self.half_messages: list[UUID] = []

    # --- services -----------------------------------------------------------------------------

    def envelope(self, key: str | None = "") -> Envelope:
        key = self.chance.choice([*self.world.keys, HELD]) if key == "" else key
        source = self.chance.choice(["things", "things", "others"]) if key != HELD else "things"
        return envelope(key, source=source)

    def envelopes(self) -> list[Envelope]:
        return [self.envelope() for _ in range(self.chance.randrange(1, 6))]

    def write(self, *envelopes: Envelope, **due: Any) -> list[UUID]:
        written = write(self.stores, *envelopes, **due)
        self.world.visible |= dict.fromkeys(written, self.world.step)
        return written

    def write_some(self) -> None:
        self.write(*self.envelopes())

    def write_delayed(self) -> None:
        self.write(*self.envelopes(), delay=LATER)

    def begin_late(self) -> None:
        if len(self.late) < 2:
            connection = self.stores.engine.connect()
            late = Late(connection, connection.begin(), [])
            self.late.append(late)
            self.write_late(late)
            # Rows written in the meantime have higher numbers, and are visible earlier.
            self.write_some()

    def write_late(self, late: Late) -> None:
        envelopes = self.envelopes()
        postings = [Posting(envelope=e) for e in envelopes]
        self.stores.writer.insert(late.connection, postings)
        late.written += [e.id for e in envelopes]

    def go_on_late(self) -> None:
        if self.late:
            self.write_late(self.chance.choice(self.late))

    def end_late(self) -> None:
        if self.late:
            late = self.late.pop(self.chance.randrange(len(self.late)))
            if self.chance.random() < 0.2:
                late.transaction.rollback()
            else:
                late.transaction.commit()
                self.world.visible |= dict.fromkeys(late.written, self.world.step)
            late.connection.close()

    def prepare_half(self) -> None:
        message = self.envelope()
        self.stores.half.prepare([NewHalfMessage(envelope=message)])
        self.half_messages.append(message.id)

    def end_half(self) -> None:
        if self.half_messages:
            event_id = self.half_messages.pop(self.chance.randrange(len(self.half_messages)))
            is_committed = self.chance.random() < 0.8
            outcome = LocalOutcome.COMMIT if is_committed else LocalOutcome.ROLLBACK
            self.stores.half.resolve([event_id], outcome)
            if is_committed:
                self.world.visible[event_id] = self.world.step

    # --- operators ----------------------------------------------------------------------------

    def change_delayed(self) -> None:
        o = self.stores.tables.outbox
        delayed = self.world.some_event(o.c.waiting, ~o.c.holds_key, o.c.status == "INIT")
        if delayed is None:
            return
        with self.stores.engine.begin() as connection:
            delayed_events = SqlDelayedEventStore(self.stores.tables)
            if self.chance.random() < 0.5:
                delayed_events.cancel(connection, delayed, who="ann")
            else:
                due = Due(at=datetime.now(UTC) + timedelta(minutes=5))
                delayed_events.reschedule(connection, delayed, due, who="ann")

    def put_an_event_back(self) -> None:
        """Redeliver an event that has failed, or that the broker lacks."""
        t, d = self.stores.tables, dialect_of(self.stores.engine.dialect)
        status = self.chance.choice([OutboxStatus.FAILED, OutboxStatus.PROCESSED])
        event_id = self.world.some_event(t.outbox.c.status == status.value)
        if event_id is None:
            return
        self.world.put_back.add(event_id)
        self.world.unnoticed.add(event_id)
        with self.stores.engine.begin() as connection:
            if status is OutboxStatus.FAILED:
                connection.execute(statements.replay(t, d, event_id))
            else:
                connection.execute(repair.publish_again(t, d, [event_id]))

    def release_events(self) -> None:
        t, d = self.stores.tables, dialect_of(self.stores.engine.dialect)
        event_id = self.world.some_event(t.outbox.c.status == OutboxStatus.PROCESSING.value)
        if event_id is not None:
            with self.stores.engine.begin() as connection:
                connection.execute(repair.release_events(t, d, [event_id]))

    def close(self) -> None:
        for late in self.late:
            late.connection.close()
