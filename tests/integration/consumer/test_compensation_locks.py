"""Which operations may run while an event is compensated, and which have to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, RetryPolicy, TxKind, new_event_id
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.domain.events import Envelope
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import AttemptOutcome, IncomingEvent
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.retention import SqlRetentionStore
from tests.support.service import Service, effect, make_topics

PATIENCE_S = 15


class Compensation:
    """A compensation of `orders` that takes as long as a test chooses."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.begun, self.may_end = threading.Event(), threading.Event()
        service.app.declare("orders.placed")
        make_topics(service)
        group = service.app.consumer("orders")
        group.compensates("orders.placed", retry=RetryPolicy(max_attempts=1))(self._cancel)
        self._store = SqlInboxStore(service.engine, service.app.tables)
        self._processor = EventProcessor(group=group, store=self._store, outbox=service.app.outbox)
        self._beside = ThreadPoolExecutor(2)

    def _cancel(self, session: Session, event: Event) -> None:
        effect("cancelled")(session, event)
        self.begun.set()
        assert self.may_end.wait(2 * PATIENCE_S)

    def place(self) -> Event:
        """Write an event that has no key, so that its rollbacks do not wait for each other."""
        event = Event(type="orders.placed")
        with self.service.transaction() as session:
            self.service.app.outbox.add(session, event)
        return event

    def work(self, original: Event, refused_by: str) -> Future[AttemptOutcome]:
        """Receive a rollback of the event, and process it in another thread."""
        rollback = Envelope(
            id=new_event_id(),
            type="orders.placed",
            source=refused_by,
            topic="orders.placed",
            payload="{}",
            time=datetime.now(UTC),
            kind=TxKind.ROLLBACK,
            causation_id=original.id,
            causation_source="orders",
        )
        record = ReceivedRecord(topic="t", partition=0, offset=0, key=None, value=b"")
        self._store.receive("orders", [IncomingEvent(envelope=rollback, record=record)], [])
        return self._beside.submit(self._processor.process, rollback)

    def close(self) -> None:
        self.may_end.set()
        self._beside.shutdown()


@pytest.fixture
def compensation(make_service: Callable[..., Service]) -> Iterator[Compensation]:
    made = Compensation(make_service("orders"))
    yield made
    made.close()


def test_the_relay_does_not_wait_for_a_compensation(compensation: Compensation) -> None:
    service = compensation.service
    relay = service.relay()
    # As after a relay that died after its send: the event is delivered and refused, but not
    # settled.
    ended = compensation.work(compensation.place(), refused_by="stock")
    assert compensation.begun.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as beside:
        passing = beside.submit(relay.run_once)
        try:
            assert passing.result(PATIENCE_S / 3).published == 1
        finally:
            compensation.may_end.set()
    assert ended.result(PATIENCE_S) is AttemptOutcome.COMPENSATED


def test_an_event_is_not_purged_while_its_compensation_runs(compensation: Compensation) -> None:
    service = compensation.service
    event = compensation.place()
    service.relay().run_once()
    service.execute("UPDATE shield_outbox SET settled_at = now() - interval '1 minute'")

    def purged() -> int:
        purge = SqlRetentionStore(service.engine, service.app.tables)
        return purge.purge_outbox(older_than=timedelta(0), limit=10).removed

    ended = compensation.work(event, refused_by="stock")
    assert compensation.begun.wait(PATIENCE_S)
    assert purged() == 0
    compensation.may_end.set()
    assert ended.result(PATIENCE_S) is AttemptOutcome.COMPENSATED
    assert purged() == 1


def test_second_rollback_waits_and_finds_the_event_compensated(
    compensation: Compensation, eventually: Callable[..., None]
) -> None:
    service = compensation.service
    event = compensation.place()
    first = compensation.work(event, refused_by="stock")
    assert compensation.begun.wait(PATIENCE_S)
    compensation.begun.clear()
    second = compensation.work(event, refused_by="billing")
    waiting = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    eventually(lambda: service.rows(waiting) == [(1,)], "the second waits")
    assert not compensation.begun.is_set()
    compensation.may_end.set()
    assert first.result(PATIENCE_S) is AttemptOutcome.COMPENSATED
    assert second.result(PATIENCE_S) is AttemptOutcome.MOOT
    assert len(service.effects("cancelled")) == 1
    assert service.inbox() == {"PROCESSED": 2}


def test_compensations_of_different_events_run_concurrently(
    compensation: Compensation,
) -> None:
    one, another = compensation.place(), compensation.place()
    first = compensation.work(one, refused_by="stock")
    assert compensation.begun.wait(PATIENCE_S)
    compensation.begun.clear()
    second = compensation.work(another, refused_by="stock")
    assert compensation.begun.wait(PATIENCE_S)
    compensation.may_end.set()
    assert [ended.result(PATIENCE_S) for ended in (first, second)] == [
        AttemptOutcome.COMPENSATED
    ] * 2
