"""The ports of a relay with metrics: counted once for each batch, not for each event."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from threading import Lock
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.metrics import names
from shieldtx.metrics.relay_metrics import RelayMetrics
from shieldtx.ports.broker import Backpressure, Delivery, DeliveryOutcome, Publisher, Record
from shieldtx.ports.relay import (
    Claim,
    LeaseStore,
    RelayStore,
    Settlement,
    ShardLeases,
)

MOST_CLAIMS: Final = 8
"""The maximum number of claims that are remembered; a relay has three in flight."""


class _Claimed(NamedTuple):
    """What is counted of an event; not its payload, which would stay in memory."""

    topic: str
    kind: str
    time: datetime


class MeteredRelayStore:
    """A relay's store that measures claims and settlements (the port RelayStore)."""

    def __init__(
        self,
        store: RelayStore,
        metrics: RelayMetrics,
        *,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._claims: dict[UUID, dict[UUID, _Claimed]] = {}
        """The events of each claim whose outcome is not written yet, by token and id."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Claim events, and remember their topics."""
        began = self._clock()
        claim = self._store.claim(relay=relay, limit=limit)
        with self._metrics.guard:
            self._metrics.claim.observe(self._clock() - began)
            self._metrics.batch_limit.set(limit)
            self._remember(claim)
        return claim

    def until_due(self, *, relay: str, since: timedelta, within: timedelta) -> timedelta | None:
        """Ask the store."""
        return self._store.until_due(relay=relay, since=since, within=within)

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Withdraw a claim."""
        return self._store.withdraw(relay=relay, renamed=renamed)

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Write outcomes, and count them when they are written."""
        began = self._clock()
        kept = self._store.settle(token, settlement)
        with self._metrics.guard:
            self._metrics.settle.observe(self._clock() - began)
            self._metrics.lost.inc(len(settlement) - kept)
            published = self._take(token, settlement.processed)
            self._count(published, "processed")
            self._observe_ages(published)
            self._count(self._take(token, settlement.unsent), "released")
            self._count(self._take(token, settlement.unconfirmed), "unconfirmed")
            retried = [retry.event_id for retry in settlement.retries]
            self._count(self._take(token, retried), "retried")
        return kept

    def fail(
        self,
        token: UUID,
        event_id: UUID,
        *,
        reason: str,
        local_rollback: Callable[[Session], None] | None,
    ) -> bool:
        """Settle an event as FAILED, and count it."""
        kept = self._store.fail(token, event_id, reason=reason, local_rollback=local_rollback)
        with self._metrics.guard:
            self._metrics.lost.inc(int(not kept))
            self._count(self._take(token, [event_id]), "failed")
        return kept

    def _remember(self, claim: Claim) -> None:
        if not claim.events:
            return
        self._claims[claim.token] = {
            e.envelope.id: _Claimed(
                e.envelope.topic, e.envelope.kind.value.lower(), e.envelope.time
            )
            for e in claim.events
        }
        # A claim that is withdrawn is never settled.
        if len(self._claims) > MOST_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def _take(self, token: UUID, ids: Sequence[UUID]) -> list[_Claimed]:
        """Return the events of a claim with these ids, and forget them."""
        claimed = self._claims.get(token)
        if claimed is None:
            return []
        found = [claimed.pop(each) for each in ids if each in claimed]
        if not claimed:
            del self._claims[token]
        return found

    def _count(self, events: Sequence[_Claimed], outcome: str) -> None:
        for (topic, kind), count in Counter((e.topic, e.kind) for e in events).items():
            labels = (self._metrics.topics.of(topic), kind, outcome)
            self._metrics.events.labels(*labels).inc(count)

    def _observe_ages(self, events: Sequence[_Claimed]) -> None:
        now = self._now().timestamp()
        ages: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for event in events:
            # Clocks of writers differ: an event of the future has the age 0.
            ages[event.topic, event.kind].append(max(0.0, now - event.time.timestamp()))
        for (topic, kind), values in ages.items():
            self._metrics.age.observe((self._metrics.topics.of(topic), kind), values)


class MeteredLeaseStore:
    """A lease store that counts the shards of its relay (the port LeaseStore).

    Of renewals in several threads at the same time only one is counted: the order of their answers
    is unknown.
    """

    def __init__(
        self,
        leases: LeaseStore,
        metrics: RelayMetrics,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._leases = leases
        self._metrics = metrics
        self._clock = clock
        self._owned: frozenset[int] = frozenset()
        self._counted_at = -inf
        self._lock = Lock()

    def renew(self, *, relay: str, lease: timedelta) -> ShardLeases:
        """Renew the leases, and count what was taken and lost since."""
        began = self._clock()
        now = self._leases.renew(relay=relay, lease=lease)
        with self._metrics.guard, self._lock:
            if began >= self._counted_at:
                self._metrics.takeovers.inc(len(now.shards - self._owned))
                self._metrics.leases_lost.inc(len(self._owned - now.shards))
                self._own(now.shards)
        return now

    def release(self, *, relay: str, shards: frozenset[int]) -> None:
        """Release shards for the other relays."""
        self._leases.release(relay=relay, shards=shards)
        with self._metrics.guard, self._lock:
            self._own(self._owned - shards)

    def leave(self, *, relay: str) -> None:
        """Release every shard."""
        self._leases.leave(relay=relay)
        with self._metrics.guard, self._lock:
            self._own(frozenset())

    def _own(self, shards: frozenset[int]) -> None:
        self._owned, self._counted_at = shards, self._clock()
        self._metrics.shards.set(len(shards))


class MeteredPublisher:
    """A publisher that measures batches (the port Publisher)."""

    def __init__(
        self,
        publisher: Publisher,
        metrics: RelayMetrics,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._publisher = publisher
        self._metrics = metrics
        self._clock = clock

    def publish(
        self, records: Sequence[Record], *, timeout: float, with_offsets: bool = False
    ) -> Sequence[Delivery]:
        """Send records, and count them by topic and outcome."""
        began = self._clock()
        deliveries = self._publisher.publish(records, timeout=timeout, with_offsets=with_offsets)
        with self._metrics.guard:
            self._count(records, deliveries, took=self._clock() - began)
        return deliveries

    def pressure(self) -> Backpressure:
        """Return the pressure of the last batch, and add the pause that the broker asks for."""
        pressure = self._publisher.pressure()
        with self._metrics.guard:
            self._metrics.throttled.inc(pressure.pause)
        return pressure

    def close(self) -> None:
        """Disconnect from the broker."""
        self._publisher.close()

    def _count(
        self, records: Sequence[Record], deliveries: Sequence[Delivery], *, took: float
    ) -> None:
        counts = Counter(
            (record.topic, delivery.outcome)
            for record, delivery in zip(records, deliveries, strict=True)
        )
        for (topic, outcome), count in counts.items():
            destination = self._metrics.destinations.of(topic)
            is_sent = outcome is DeliveryOutcome.ACKNOWLEDGED
            error = "" if is_sent else outcome.value.lower()
            self._metrics.sent.labels(names.KAFKA, "send", destination, error).inc(count)
            operation = (names.KAFKA, "send", "send", destination, error)
            self._metrics.operation.labels(*operation).observe(took)
