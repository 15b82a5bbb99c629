"""A claim on PostgreSQL, and what others do to its rows before it is settled, or while it waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text

from shieldtx import new_event_id
from shieldtx.buffer import Posting
from shieldtx.events import Envelope
from shieldtx.ports import Settlement
from shieldtx.store.lease_store import SqlLeaseStore
from shieldtx.store.outbox_store import SqlOutboxStore, SqlOutboxWriter
from shieldtx.store.tables import tables

HOUR = timedelta(hours=1)


@dataclass
class Outbox:
    """A migrated outbox, and relays' views of it."""

    engine: Engine

    def __post_init__(self) -> None:
        self.tables = tables()
        self.writer = SqlOutboxWriter(self.tables, shards=4)
        self.leases = SqlLeaseStore(self.engine, self.tables)

    def store_of(self, relay: str) -> SqlOutboxStore:
        """A relay's view of the outbox; it owns every shard that is free."""
        self.leases.renew(relay=relay, lease=HOUR)
        return SqlOutboxStore(self.engine, self.tables)

    def write(self, *ids: UUID, key: str = "k", delay: timedelta | None = None) -> None:
        postings = [Posting(envelope=_envelope(i, key), delay=delay) for i in ids]
        with self.engine.begin() as connection:
            self.writer.insert(connection, postings)

    def run(self, *statements: str) -> None:
        with self.engine.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in statements:
                alone.execute(text(statement))

    def status(self) -> dict[UUID, str]:
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT event_id, status FROM shield_outbox"))
            return dict(rows.tuples().all())


def _envelope(event_id: UUID, key: str) -> Envelope:
    return Envelope(
        id=event_id,
        type="things.happened",
        source="things",
        topic="things",
        payload="{}",
        time=datetime.now(UTC),
        key=key,
    )


@pytest.fixture
def outbox(migrated_url: str) -> Iterator[Outbox]:
    engine = create_engine(migrated_url)
    yield Outbox(engine)
    engine.dispose()


@pytest.mark.parametrize("acknowledged", [[0], [1], [0, 1]])
def test_a_table_that_was_rewritten_meanwhile_has_no_neighbour_settled(
    outbox: Outbox, acknowledged: list[int]
) -> None:
    gone, low, high, *others = (new_event_id() for _ in range(6))
    outbox.write(gone, new_event_id(), delay=HOUR)
    outbox.write(high, low)
    outbox.write(*others, delay=HOUR)
    # The claimed versions take the first places of the table, in the order of writing...
    outbox.run(
        "DELETE FROM shield_outbox WHERE seq <= 2",
        "VACUUM (INDEX_CLEANUP ON) shield_outbox",
    )
    store = outbox.store_of("r")
    claim = store.claim(relay="r", limit=10)
    written = [claimed.envelope.id for claimed in claim.events]
    assert written == [high, low]
    # ... and then change places.
    outbox.run("CLUSTER shield_outbox USING shield_outbox_pkey")
    processed = [written[place] for place in acknowledged]
    unsent = [event_id for event_id in written if event_id not in processed]
    settlement = Settlement(processed=processed, unsent=unsent)
    assert store.settle(claim.token, settlement) == 2
    status = outbox.status()
    assert {event_id for event_id in status if status[event_id] == "PROCESSED"} == {*processed}
    assert all(status[event_id] == "INIT" for event_id in unsent)
