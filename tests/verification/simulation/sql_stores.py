"""The SQL stores on a real database that uses the simulation's time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    StaticPool,
    and_,
    create_engine,
    delete,
    event,
    select,
    text,
    update,
)

from shieldtx.domain.events import Envelope
from shieldtx.ports.outbox import Posting
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.dialects import dialect_of
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.pauses import SqlPauseAdmin, SqlPauseStore
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.retention import SqlRetentionStore
from shieldtx.store.schema import Schema
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.tables import Tables, tables
from tests.verification.simulation.database import EPOCH, Clock, InboxRow
from tests.verification.simulation.half_messages import PLAN

SHARDS = 2
_CLOCK_OF_ITS_OWN = """
CREATE SCHEMA simulated;
CREATE TABLE simulated.clock (now timestamptz NOT NULL);
INSERT INTO simulated.clock VALUES (now());
CREATE FUNCTION simulated.statement_timestamp() RETURNS timestamptz
    STABLE LANGUAGE sql AS 'SELECT now FROM simulated.clock'
"""


class SqlStores:
    """The stores on one database, whose `now` is the simulation's."""

    def __init__(self, engine: Engine, tell_the_time: Callable[[Clock], None]) -> None:
        """Use the tables of `engine`; `tell_the_time` sets the time of its database."""
        self.clock = Clock()
        self.tables: Tables = tables()
        self._content = _content(self.tables)
        self.engine = engine
        self._tell_the_time = tell_the_time
        self.begin(self.clock)

    def begin(self, clock: Clock) -> None:
        """Empty the tables, and use a new clock."""
        self.clock = clock
        self.keep_time()
        with self.engine.begin() as connection:
            for table in self.tables.metadata.sorted_tables:
                if table is not self.tables.shard:
                    connection.execute(delete(table))
            connection.execute(
                update(self.tables.shard).values(owner=None, epoch=0, lease_until=None)
            )
        self.writer = SqlOutboxWriter(self.tables, shards=SHARDS)
        self.outbox = SqlRelayStore(
            self.engine, self.tables, source="A", clock=lambda: self.clock.now
        )
        self.dead = set[str]()
        """The relays whose process has died."""
        self.leases = SqlLeaseStore(
            self.engine, self.tables, has_died=lambda relay: relay in self.dead
        )
        self.inbox = SqlInboxStore(self.engine, self.tables)
        self.pauses = SqlPauseStore(self.engine, self.tables)
        self.purge = SqlRetentionStore(self.engine, self.tables)
        self.half_messages = SqlHalfMessageStore(self.engine, self.tables, shards=SHARDS, plan=PLAN)
        self.barrier = SqlBarrier(self.engine, self.tables, patience=timedelta(seconds=1))

    def keep_time(self) -> None:
        """Set the database's time to the clock's."""
        self._tell_the_time(self.clock)

    def write(
        self, envelope: Envelope, delay: float, before_commit: Callable[[], None] = lambda: None
    ) -> None:
        with self.engine.begin() as connection:
            self.insert(connection, envelope, delay)
            before_commit()

    def insert(self, connection: Connection, envelope: Envelope, delay: float = 0.0) -> None:
        """Write an event in an open transaction."""
        posting = Posting(envelope=envelope, delay=timedelta(seconds=delay) if delay else None)
        self.writer.insert(connection, [posting])

    def run_local(self, event_id: UUID, *, commits: bool) -> None:
        """Run a local transaction that enters the barrier."""
        with self.engine.begin() as connection:
            self.barrier.enter(connection, [event_id])
            _ = 1 // commits

    def pause(self, group: str, event_type: str, *, reason: str) -> None:
        """Pause a type as an operator."""
        self._pauses_of_operators().pause(group, event_type, who="operator", reason=reason)

    def resume(self, group: str, event_type: str) -> int:
        """End pauses of a type as an operator."""
        return self._pauses_of_operators().resume(group, event_type, who="operator", reason="")

    def _pauses_of_operators(self) -> SqlPauseAdmin:
        return SqlPauseAdmin(self.engine, self.tables)

    def replay(self, row: InboxRow) -> None:
        """Let an operator replay a row, if it is DEAD."""
        event = row.envelope
        statement = inbox_sql.replay(
            self.tables,
            dialect_of(self.engine.dialect),
            group=row.group,
            event_id=event.id,
            source=event.source,
        )
        with self.engine.begin() as connection:
            connection.execute(statement)

    def content(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return everything on which both sides have to agree, in the order of the sequences."""
        with self.engine.connect() as connection:
            found = {
                name: [tuple(map(_plain, row)) for row in connection.execute(statement)]
                for name, statement in self._content.items()
            }
        found["parked"].sort()
        return found

    def close(self) -> None:
        self.engine.dispose()


def open_sqlite() -> SqlStores:
    """Make the stores on a SQLite in memory."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    told = [Clock()]

    def strftime(form: str, base: str, shift: str = "+0 seconds") -> str:
        assert (form, base) == ("%Y-%m-%d %H:%M:%f000", "now")
        seconds = told[0].now + float(shift.removesuffix(" seconds"))
        return f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S.%f}"

    @event.listens_for(engine, "connect")
    def replace_the_clock(connection: sqlite3.Connection, _record: object) -> None:
        connection.create_function("strftime", -1, strftime)

    Schema(engine, shards=SHARDS).upgrade()
    return SqlStores(engine, lambda clock: told.__setitem__(0, clock))


def open_postgres(url: str) -> SqlStores:
    """Make the stores on a PostgreSQL with tables of as many shards as here.

    Its function for the time takes precedence over the server's own.
    """
    engine = create_engine(
        url, connect_args={"options": "-c search_path=simulated,pg_catalog,public"}
    )
    with engine.begin() as connection:
        connection.execute(text(_CLOCK_OF_ITS_OWN))

    def tell_the_time(clock: Clock) -> None:
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE simulated.clock SET now = :now"), {"now": clock.datetime()}
            )

    return SqlStores(engine, tell_the_time)


def _plain(value: Any) -> Any:
    return (value - EPOCH).total_seconds() if isinstance(value, datetime) else value


def _content(t: Tables) -> dict[str, Select[Any]]:
    """Select everything on which both sides have to agree."""
    o, i, s = t.outbox.c, t.inbox.c, t.shard.c
    r, p, b, h = t.relay.c, t.parked.c, t.barrier.c, t.pause.c
    return {
        "outbox": select(
            *(o.event_id, o.shard, o.status, o.attempts, o.waiting),
            # Without the blocked rows, which do not exist in memory.
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
        "pauses": select(
            *(h.consumer_group, h.event_type, h.tx_kind, h.paused_by, h.reason),
            *(h.probe_at, h.probes, h.probe_token.is_not(None)),
        ).order_by(h.consumer_group, h.event_type, h.tx_kind),
        "barrier": select(b.event_id, b.committed).order_by(b.event_id),
    }
