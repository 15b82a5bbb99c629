"""Tests of two workers of a group, one with an event, one with its rollback, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from shieldtx.consumer import compensation
from shieldtx.consumer.batch_executor import BatchExecutor
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Attempt, IncomingEvent
from tests.verification.simulation.cooperative_threads import CooperativeThread, CooperativeThreads
from tests.verification.simulation.database import (
    EPOCH,
    Clock,
    Database,
    DatabaseError,
    OutboxRow,
    Shard,
    Transaction,
)
from tests.verification.simulation.inbox import MemoryInboxStore
from tests.verification.simulation.outbox import MemoryOutbox

GROUP, LEASE = "bank", timedelta(seconds=5)
AT_ONCE = RetryPolicy(max_attempts=100, first=timedelta(0), longest=timedelta(0), jitter=0)
CHOICES = 9
"""Steps for which every interleaving is tried; then the workers finish one after the other."""


class Stepwise:
    """An inbox that waits before each call, and inside the transaction of an effect."""

    def __init__(self, store: MemoryInboxStore, pause: Callable[[], None]) -> None:
        self._store = store
        self._pause = pause
        self.reset_session = store.reset_session

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._store, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            self._pause()
            return call(*args, **kwargs)

        return step

    def effect(self, attempt: Attempt) -> Any:
        return self._stepwise(self._store.effect(attempt))

    def effects(self, attempts: Sequence[Attempt]) -> Any:
        return self._stepwise(self._store.effects(attempts))

    @contextmanager
    def _stepwise(self, opening: Any) -> Iterator[Transaction]:
        self._pause()
        with opening as transaction:
            self._pause()
            yield transaction
            self._pause()


class Race:
    """One event and its rollback at two workers of a group that handles and compensates."""

    def __init__(self, source: str, lease: timedelta | None) -> None:
        self.clock = Clock()
        self.database = Database(clock=self.clock, shards=[Shard(0)])
        self.effects: list[str] = []
        self.group = ConsumerGroup(GROUP, EventTypeRegistry())
        self.group.handles("transfer", retry=AT_ONCE, lease=LEASE)(self._noting("credit"))
        self.group.compensates("transfer", retry=AT_ONCE, lease=LEASE)(self._noting("take back"))
        self.event = _envelope(1, source, TxKind.COMMIT)
        self.rollback = _envelope(
            2, "elsewhere", TxKind.ROLLBACK, causation_id=self.event.id, causation_source=source
        )
        if source == "B":
            row = OutboxRow(envelope=self.event, seq=1, shard=0, due_at=0.0)
            self.database.outbox[self.event.id] = row
        self.threads = CooperativeThreads()
        self._arrivals = [(self.event, lease), (self.rollback, None)]

    def run(self, choices: Sequence[int]) -> None:
        """Let the workers alternate as chosen, then finish one after the other."""
        threads = self.threads
        workers = [
            threads.start(partial(self._work, n, self._pause)) for n in range(len(self._arrivals))
        ]
        for choice in choices:
            _resume(workers[choice])
        for worker in workers:
            while not worker.is_done:
                _resume(worker)
        threads.close()
        for _ in range(5):
            self.clock.now += LEASE.total_seconds() + 1
            for envelope, _ in self._arrivals:
                self._processor("later", lambda: None).process(envelope)

    def statuses(self) -> list[InboxStatus]:
        rows = sorted(self.database.inbox.values(), key=lambda row: row.envelope.id)
        return [row.status for row in rows]

    def _work(self, number: int, pause: Callable[[], None]) -> None:
        envelope, lease = self._arrivals[number]
        processor = self._processor(f"worker {number}", pause)
        record = ReceivedRecord(topic="t", partition=0, offset=number, key=None, value=b"")
        arrival = IncomingEvent(envelope=envelope, record=record, lease=lease)
        for _ in range(3):
            try:
                started = processor.store.receive(GROUP, [arrival], []).started
                executor = BatchExecutor(
                    group=self.group,
                    processor=processor,
                    is_time_up=lambda: False,
                    clock=lambda: self.clock.now,
                )
                executor.execute(started)
                processor.process(envelope)
            except DatabaseError:
                # A statement that would wait for the other one: retried.
                continue

    def _processor(self, name: str, pause: Callable[[], None]) -> EventProcessor:
        store = Stepwise(MemoryInboxStore(self.database, by=name), pause)
        outbox = MemoryOutbox(
            source="B", new_id=lambda: UUID(int=3), event_types=EventTypeRegistry(), writer=None
        )
        return EventProcessor(group=self.group, store=store, outbox=outbox)  # type: ignore[arg-type]

    def _pause(self) -> None:
        running = self.threads.running
        assert running is not None
        running.pause()

    def _noting(self, what: str) -> Callable[[Any, Event], None]:
        def handler(session: Any, _: Event) -> None:
            session.write(lambda: self.effects.append(what))

        return handler


def _envelope(number: int, source: str, kind: TxKind, **cause: Any) -> Envelope:
    return Envelope(
        id=UUID(int=number),
        type="transfer",
        source=source,
        topic="transfer",
        payload="null",
        time=EPOCH,
        kind=kind,
        key="k",
        **cause,
    )


def _resume(worker: CooperativeThread) -> None:
    if not worker.is_done:
        worker.resume()


def outcomes(source: str, lease: timedelta | None) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the outcomes of all interleavings: effects in order, and the rows' statuses."""
    found = set()
    for choices in product((0, 1), repeat=CHOICES):
        race = Race(source, lease)
        race.run(choices)
        found.add((tuple(race.effects), tuple(race.statuses())))
    return found


APPLIED_FIRST = (("credit", "take back"), ("PROCESSED", "PROCESSED"))
FOREIGN = {APPLIED_FIRST, ((), ("FENCED", "PROCESSED"))}
OWN = {APPLIED_FIRST, (("take back",), ("FENCED", "PROCESSED"))}
LEASES = pytest.mark.parametrize("lease", [None, LEASE], ids=["alone", "started with its batch"])


@LEASES
@pytest.mark.parametrize(("source", "allowed"), [("A", FOREIGN), ("B", OWN)], ids=["A", "own"])
def test_no_interleaving_applies_an_event_after_its_compensation(
    source: str, allowed: set[Any], lease: timedelta | None
) -> None:
    assert outcomes(source, lease) == allowed


@pytest.mark.selftest
@LEASES
@pytest.mark.parametrize("source", ["A", "B"], ids=["A", "own"])
def test_compensation_that_ignores_its_event_is_caught(
    source: str, lease: timedelta | None
) -> None:
    with patch.object(compensation, "_UNFINISHED", frozenset()):
        effects = {effects for effects, _ in outcomes(source, lease)}
    assert ("take back", "credit") in effects
