"""A claim on PostgreSQL, and concurrent changes to its rows before it is settled, or while it
waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, Update, create_engine, text
from sqlalchemy.exc import DBAPIError

from shieldtx import new_event_id
from shieldtx.domain.events import Envelope
from shieldtx.ports.outbox import Posting
from shieldtx.ports.relay import Claim, Retry, Settlement
from shieldtx.store.dialects import AUTOCOMMIT_ISOLATION, dialect_of
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.statements import outbox as sql
from shieldtx.store.tables import tables

HOUR = timedelta(hours=1)


@dataclass
class Outbox:
    """A migrated outbox, and the stores of its relays."""

    engine: Engine

    def __post_init__(self) -> None:
        self.tables = tables()
        self.writer = SqlOutboxWriter(self.tables, shards=4)
        self.leases = SqlLeaseStore(self.engine, self.tables)

    def store_of(self, relay: str) -> SqlRelayStore:
        """Return a relay's store of the outbox; the relay owns every free shard."""
        self.leases.renew(relay=relay, lease=HOUR)
        return SqlRelayStore(self.engine, self.tables)

    def write(self, *ids: UUID, key: str = "k", delay: timedelta | None = None) -> None:
        postings = [Posting(envelope=_envelope(i, key), delay=delay) for i in ids]
        with self.engine.begin() as connection:
            self.writer.insert(connection, postings)

    def run(self, *statements: str) -> None:
        with self.engine.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in statements:
                alone.execute(text(statement))

    def one(self, query: str) -> object:
        with self.engine.connect() as connection:
            return connection.scalar(text(query))

    def status(self) -> dict[UUID, str]:
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT event_id, status FROM shield_outbox"))
            return dict(rows.all())


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


def test_a_settlement_is_written_whole_or_not_at_all(outbox: Outbox) -> None:
    ids = [new_event_id() for _ in range(3)]
    outbox.write(*ids)
    outbox.store_of("r")
    # As in a worker, in whose sessions a statement may be a transaction of its own.
    engine = outbox.engine.execution_options(**{AUTOCOMMIT_ISOLATION: "AUTOCOMMIT"})
    store = SqlRelayStore(engine, outbox.tables)
    claim = store.claim(relay="r", limit=10)
    outbox.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'refused'; END$$",
        "CREATE TRIGGER refuses BEFORE UPDATE ON shield_outbox FOR EACH ROW "
        "WHEN (new.status = 'INIT' AND new.waiting) EXECUTE FUNCTION refuse()",
    )
    retry = Retry(event_id=ids[2], delay=HOUR, reason="not now")
    settlement = Settlement(processed=ids[:1], unsent=ids[1:2], retries=[retry])
    with pytest.raises(DBAPIError, match="refused"):
        store.settle(claim.token, settlement)
    assert set(outbox.status().values()) == {"PROCESSING"}
    outbox.run("DROP TRIGGER refuses ON shield_outbox")
    assert store.settle(claim.token, settlement) == len(ids)


@pytest.mark.parametrize("acknowledged", [[0], [1], [0, 1]])
@pytest.mark.parametrize("claims", ["one claim", "two claims"])
def test_rewritten_table_has_no_other_row_settled(
    outbox: Outbox, acknowledged: list[int], claims: str
) -> None:
    gone, low, high, *others = (new_event_id() for _ in range(6))
    outbox.write(gone, new_event_id(), delay=HOUR)
    outbox.write(high, low)
    outbox.write(*others, delay=HOUR)
    # The claimed versions are the first rows of the table, in the order of writing...
    outbox.run(
        "DELETE FROM shield_outbox WHERE seq <= 2",
        "VACUUM (INDEX_CLEANUP ON) shield_outbox",
    )
    store = outbox.store_of("r")
    number = 1 if claims == "two claims" else 2
    made = [store.claim(relay="r", limit=number) for _ in range(2 // number)]
    assert [_sent([claim]) for claim in made] in ([[high, low]], [[high], [low]])
    # ... and then change their positions.
    outbox.run("CLUSTER shield_outbox USING shield_outbox_pkey")
    processed = {(high, low)[place] for place in acknowledged}
    settled: set[UUID] = set()
    for claim in made:
        ids = _sent([claim])
        settlement = Settlement(
            processed=[event_id for event_id in ids if event_id in processed],
            unsent=[event_id for event_id in ids if event_id not in processed],
        )
        assert store.settle(claim.token, settlement) == len(ids)
        settled |= processed.intersection(ids)
        status = outbox.status()
        assert {i for i in status if status[i] == "PROCESSED"} == settled
    assert all(status[event_id] == "INIT" for event_id in {high, low} - processed)


LET_LEASES_RUN_OUT = [
    f"UPDATE shield_{table} SET lease_until = now() WHERE lease_until IS NOT NULL"
    for table in ("shard", "outbox")
]
SOMEBODY_WAITS = """
    SELECT count(*) > 0 FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def _release(outbox: Outbox, claim: Claim) -> Update:
    [claimed] = claim.events
    dialect, ids = dialect_of(outbox.engine.dialect), [claimed.envelope.id]
    return sql.release(outbox.tables, dialect, claim.token, ids, reason="outage", unconfirmed=True)


def _retry(outbox: Outbox, claim: Claim) -> Update:
    [claimed] = claim.events
    dialect, event_id = dialect_of(outbox.engine.dialect), claimed.envelope.id
    return sql.retry(
        outbox.tables, dialect, claim.token, event_id, delay=timedelta(0), reason="refused"
    )


@pytest.mark.parametrize("frozen", ["before it writes", "before it commits"])
@pytest.mark.parametrize("write_back", [_release, _retry])
def test_no_event_overtakes_a_release_of_a_frozen_relay(
    outbox: Outbox,
    eventually: Callable[..., None],
    frozen: str,
    write_back: Callable[[Outbox, Claim], Update],
) -> None:
    first, second = new_event_id(), new_event_id()
    outbox.write(first)
    before = outbox.store_of("frozen")
    statement = write_back(outbox, before.claim(relay="frozen", limit=10))
    outbox.write(second)
    outbox.run(*LET_LEASES_RUN_OUT)
    with outbox.engine.connect() as thawing, ThreadPoolExecutor(1) as beside:
        if frozen == "before it commits":
            assert thawing.execute(statement).rowcount == 1
        heir = outbox.store_of("heir")
        if frozen == "before it writes":
            thawing.execute(statement)
        claiming = beside.submit(heir.claim, relay="heir", limit=10)
        eventually(
            lambda: claiming.done() or outbox.one(SOMEBODY_WAITS), "the heir waits, or has them"
        )
        thawing.commit()
        claims = [claiming.result()]
    eventually(
        lambda: claims.append(_take(heir, claims[-1])) or first in _sent(claims), "first is sent"
    )
    while claims[-1].events:
        claims.append(_take(heir, claims[-1]))
    assert _sent(claims) == [first, second]
    assert set(outbox.status().values()) == {"PROCESSED"}
    attempts = [claimed.attempts for claim in claims for claimed in claim.events]
    assert attempts[1] == 1


def _sent(claims: list[Claim]) -> list[UUID]:
    return [claimed.envelope.id for claim in claims for claimed in claim.events]


def _take(store: SqlRelayStore, sent: Claim) -> Claim:
    """Settle a claim as sent, and make the next."""
    if sent.events:
        store.settle(sent.token, Settlement(processed=_sent([sent])))
    return store.claim(relay="heir", limit=10)
