"""The trace on each database: written entries are found, and old or excess entries are purged."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, update

from shieldtx.domain.events import Envelope, new_event_id, rollback_of
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent
from shieldtx.ports.outbox import Posting
from shieldtx.ports.relay import Claim, Settlement
from shieldtx.ports.tracing import LONGEST_TRACED_REASON, TraceEntry
from shieldtx.store.trace import SqlTraceStore
from tests.contract.conftest import Stores

GROUP = "stock"
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@pytest.fixture
def traces(stores: Stores) -> SqlTraceStore:
    return SqlTraceStore(stores.engine, stores.tables)


def entry(event_id: UUID, **given: Any) -> TraceEntry:
    standard = {"group": None, "attempt": 1, "outcome": "ACKNOWLEDGED", "ended": time.monotonic()}
    return TraceEntry(event_id=event_id, **(standard | given))


def write(traces: SqlTraceStore, *entries: TraceEntry) -> None:
    traces.write(entries, clock=time.monotonic)


def envelope(**given: Any) -> Envelope:
    standard = {
        "id": new_event_id(),
        "type": "orders.placed",
        "source": "orders",
        "topic": "orders",
        "payload": '{"card": "SECRET"}',
        "time": datetime.now(UTC),
        "key": "k",
    }
    return Envelope(**(standard | given))


def post(stores: Stores, *envelopes: Envelope) -> None:
    with stores.engine.begin() as connection:
        stores.writer.insert(connection, [Posting(envelope=e) for e in envelopes])


def receive(stores: Stores, e: Envelope, offset: int = 7) -> None:
    record = ReceivedRecord("orders.commit", 2, offset, b"k", b"{}")
    stores.inbox.receive(GROUP, [IncomingEvent(envelope=e, record=record)], [])


def count(stores: Stores) -> int:
    with stores.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(stores.tables.trace)) or 0


def test_an_entry_is_found_as_it_was_written(stores: Stores, traces: SqlTraceStore) -> None:
    event_id = new_event_id()
    write(
        traces,
        entry(event_id, waited=0.25, took=1.5, partition=3, offset=2**40, attempt=2),
        entry(event_id, group=GROUP, outcome="RETRIED", reason='it said "no",\x00 {loudly}'),
        entry(new_event_id()),
    )
    sent, came = traces.facts(event_id).marks
    assert (sent.group, sent.attempt, sent.outcome) == (None, 2, "ACKNOWLEDGED")
    assert (sent.waited, sent.took, sent.partition, sent.offset) == (0.25, 1.5, 3, 2**40)
    assert (came.group, came.outcome) == (GROUP, "RETRIED")
    assert came.reason == 'it said "no",\ufffd {loudly}'
    assert (came.waited, came.took, came.offset, sent.reason) == (None, None, None, "")


def test_times_are_the_databases_and_keep_the_age(stores: Stores, traces: SqlTraceStore) -> None:
    event_id = new_event_id()
    before = datetime.now(UTC)
    write(traces, entry(event_id, ended=time.monotonic() - 90))
    after = datetime.now(UTC)
    [mark] = traces.facts(event_id).marks
    # SQLite counts milliseconds.
    slack = timedelta(seconds=0.1)
    assert before - slack <= mark.at + timedelta(seconds=90) <= after + slack


def test_a_long_reason_is_cut(stores: Stores, traces: SqlTraceStore) -> None:
    event_id = new_event_id()
    write(traces, entry(event_id, reason="x" * 9000))
    assert traces.facts(event_id).marks[0].reason == "x" * LONGEST_TRACED_REASON


@pytest.mark.begun_by_hand
def test_thousands_are_written_at_once(stores: Stores, traces: SqlTraceStore) -> None:
    write(traces, *(entry(new_event_id()) for _ in range(3000)))
    assert count(stores) == 3000


def test_an_unknown_event_has_no_facts(stores: Stores, traces: SqlTraceStore) -> None:
    facts = traces.facts(uuid4())
    assert facts.written is None
    assert not [*facts.received, *facts.marks, *facts.caused]


def test_the_outbox_has_the_status_of_an_event(stores: Stores, traces: SqlTraceStore) -> None:
    written = envelope(causation_id=uuid4(), causation_source="till", traceparent="00-aa-bb-01")
    post(stores, written)
    row = traces.facts(written.id).written
    assert row is not None
    assert (row.status, row.attempts, row.settled_at) == (OutboxStatus.INIT, 0, None)
    assert row.began_at <= datetime.now(UTC) + MINUTE
    assert (row.identity.type, row.identity.source, row.identity.key) == (
        *("orders.placed", "orders", "k"),
    )
    assert (row.identity.causation_id, row.identity.causation_source) == (
        written.causation_id,
        "till",
    )
    assert row.identity.traceparent == "00-aa-bb-01"
    assert "SECRET" not in repr(traces.facts(written.id))

    stores.leases.renew(relay="r", lease=MINUTE)
    claim: Claim = stores.outbox.claim(relay="r", limit=10)
    stores.outbox.settle(claim.token, Settlement(processed=[written.id]))
    settled = traces.facts(written.id).written
    assert settled is not None
    assert (settled.status, settled.attempts) == (OutboxStatus.PROCESSED, 1)
    assert settled.settled_at is not None


def test_the_inbox_has_the_facts_of_each_group(stores: Stores, traces: SqlTraceStore) -> None:
    came = envelope()
    receive(stores, came)
    record = ReceivedRecord("orders.commit", 2, 8, b"k", b"{}")
    stores.inbox.receive("fraud", [IncomingEvent(envelope=came, record=record)], [])
    attempt = stores.inbox.start_attempt(GROUP, came, lease=MINUTE, max_attempts=3)
    assert attempt is not None
    assert (attempt.partition, attempt.offset) == (2, 7)
    stores.inbox.postpone(attempt, delay=MINUTE, reason="no such shelf")

    by_group = {row.group: row for row in traces.facts(came.id).received}
    assert {g: (r.status, r.attempts, r.offset) for g, r in by_group.items()} == {
        GROUP: (InboxStatus.PROCESSING, 1, 7),
        "fraud": (InboxStatus.INIT, 0, 8),
    }
    assert by_group[GROUP].reason == "no such shelf"
    assert by_group[GROUP].due_at > by_group[GROUP].began_at


def test_rollbacks_are_found_as_written_and_as_received(
    stores: Stores, traces: SqlTraceStore
) -> None:
    original = envelope()
    here = rollback_of(original, source="stock", reason="no")
    there = rollback_of(original, source="fraud", reason="no")
    post(stores, here)
    receive(stores, there)
    assert set(traces.facts(original.id).caused) == {here.id, there.id}


def test_events_of_a_handler_are_found_among_concurrent_events(
    stores: Stores, traces: SqlTraceStore
) -> None:
    came = envelope()
    receive(stores, came)
    attempt = stores.inbox.start_attempt(GROUP, came, lease=MINUTE, max_attempts=3)
    assert attempt is not None
    caused = envelope(id=new_event_id(), causation_id=came.id, causation_source="orders")
    foreign = envelope(id=new_event_id())
    with stores.inbox.effect(attempt) as session:
        stores.writer.insert(
            session.connection(), [Posting(envelope=caused), Posting(envelope=foreign)]
        )
    assert traces.facts(came.id).caused == [caused.id]
    assert caused.kind is TxKind.COMMIT


def test_purge_removes_only_entries_that_are_too_old(stores: Stores, traces: SqlTraceStore) -> None:
    old, young = new_event_id(), new_event_id()
    write(traces, *(entry(old, ended=time.monotonic() - 2 * 86400) for _ in range(5)))
    write(traces, *(entry(young) for _ in range(3)))
    first = stores.purge.purge_trace(older_than=DAY, keep=1000, limit=4)
    assert (first.removed, first.more) == (4, True)
    second = stores.purge.purge_trace(older_than=DAY, keep=1000, limit=4)
    assert (second.removed, second.more) == (1, False)
    assert (len(traces.facts(old).marks), len(traces.facts(young).marks)) == (0, 3)


def test_purge_keeps_the_latest_entries_above_the_limit(
    stores: Stores, traces: SqlTraceStore
) -> None:
    ids = [new_event_id() for _ in range(30)]
    for event_id in ids:
        write(traces, entry(event_id))
    while stores.purge.purge_trace(older_than=DAY, keep=10, limit=7).more:
        pass
    assert [bool(traces.facts(i).marks) for i in ids] == [False] * 20 + [True] * 10


def test_purge_of_an_empty_trace_removes_nothing(stores: Stores) -> None:
    done = stores.purge.purge_trace(older_than=DAY, keep=10, limit=7)
    assert (done.removed, done.more) == (0, False)


def test_marks_are_the_latest_in_the_order_of_writing(
    stores: Stores, traces: SqlTraceStore
) -> None:
    event_id = new_event_id()
    write(traces, *(entry(event_id, attempt=n) for n in range(1, 251)))
    assert [m.attempt for m in traces.facts(event_id).marks] == list(range(51, 251))


def test_a_tombstone_is_traced_as_tombstone(stores: Stores, traces: SqlTraceStore) -> None:
    late = envelope()
    back = rollback_of(late, source="stock", reason="no")
    receive(stores, back)
    attempt = stores.inbox.start_attempt(GROUP, back, lease=MINUTE, max_attempts=3)
    assert attempt is not None
    with stores.inbox.effect(attempt) as session:
        assert stores.inbox.fence(session, attempt)
    facts = traces.facts(late.id)
    assert [row.status for row in facts.received] == [InboxStatus.FENCED]
    assert facts.caused == [back.id]


def test_facts_keep_the_clock_that_wrote_them(stores: Stores, traces: SqlTraceStore) -> None:
    came = envelope()
    receive(stores, came)
    with stores.engine.begin() as connection:
        connection.execute(
            update(stores.tables.inbox).values(received_at=datetime(2026, 3, 1, 12, tzinfo=UTC))
        )
    [row] = traces.facts(came.id).received
    assert row.began_at == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_events_are_found_by_their_business_key(stores: Stores, traces: SqlTraceStore) -> None:
    placed, paid = envelope(biz_key="4711"), envelope(type="orders.paid", biz_key="4711")
    received = envelope(type="stock.moved", source="depot", biz_key="4711")
    post(stores, placed, paid, envelope(biz_key="4712"), envelope())
    receive(stores, received)
    # A rollback is found with its event, whose business key it has.
    post(stores, rollback_of(placed, source="orders", reason="sold out"))
    # The row of a group in the same database is not another event.
    receive(stores, placed, 8)

    assert traces.events_of("4711") == sorted([placed.id, paid.id, received.id])
    assert traces.events_of("4711", event_type="orders.paid") == [paid.id]
    assert traces.events_of("4711", event_type="stock.moved") == [received.id]
    assert traces.events_of("4711", event_type="orders") == []
    assert traces.events_of("47") == []
