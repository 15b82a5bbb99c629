"""What the metrics of a relay count at its ports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.metrics import names
from shieldtx.metrics.limited_labels import OTHER
from shieldtx.metrics.metered_relay import (
    MOST_CLAIMS,
    MeteredLeaseStore,
    MeteredPublisher,
    MeteredRelayStore,
)
from shieldtx.metrics.relay_metrics import RelayMetrics
from shieldtx.ports.broker import Backpressure, Delivery, DeliveryOutcome, Record
from shieldtx.ports.relay import Claim, ClaimedEvent, Retry, Settlement, ShardLeases
from tests.support.log_records import logged

NOW = datetime(2026, 11, 29, tzinfo=UTC)
LEASE = timedelta(seconds=30)


def claimed(topic: str, *, age: float = 0.0, kind: TxKind = TxKind.COMMIT) -> ClaimedEvent:
    envelope = Envelope(
        id=uuid4(),
        type=topic,
        source="orders",
        topic=topic,
        payload="null",
        time=NOW - timedelta(seconds=age),
        kind=kind,
    )
    return ClaimedEvent(envelope=envelope, attempts=1, unconfirmed=False)


class Outbox:
    """A store that returns given claims, and keeps as many rows as it is told."""

    def __init__(self, *claims: Claim) -> None:
        self.claims = list(claims)
        self.lost = 0

    def claim(self, **_: Any) -> Claim:
        return self.claims.pop(0)

    def until_due(self, *, within: timedelta, **_: Any) -> timedelta:
        return within

    def withdraw(self, **_: Any) -> int:
        return 3

    def settle(self, _: UUID, settlement: Settlement) -> int:
        return len(settlement) - self.lost

    def fail(self, *_: Any, **__: Any) -> bool:
        return not self.lost


class Leases:
    """Leases of the shards that a test sets."""

    owned: frozenset[int] = frozenset()

    def renew(self, **_: Any) -> ShardLeases:
        return ShardLeases(shards=self.owned, relays=1, surplus=frozenset())

    def release(self, *, shards: frozenset[int], **_: Any) -> None:
        self.owned -= shards

    def leave(self, **_: Any) -> None:
        self.owned = frozenset()


class Broker:
    """A publisher whose deliveries a test sets."""

    def __init__(self, *outcomes: DeliveryOutcome) -> None:
        self.outcomes = outcomes
        self.pause = 0.0
        self.is_closed = False

    def publish(self, *_: Any, **__: Any) -> Sequence[Delivery]:
        return [Delivery(outcome=outcome) for outcome in self.outcomes]

    def pressure(self) -> Backpressure:
        return Backpressure(pause=self.pause)

    def close(self) -> None:
        self.is_closed = True


class Meters:
    """The metrics of a relay, and their values by name and labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.of_relay = RelayMetrics(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def meters() -> Meters:
    return Meters()


def a_claim(*events: ClaimedEvent) -> Claim:
    return Claim(token=uuid4(), events=events, lease_left=LEASE)


def metered(store: Outbox, meters: Meters) -> MeteredRelayStore:
    clock = iter(range(100))
    return MeteredRelayStore(
        store, meters.of_relay, clock=lambda: float(next(clock)), now=lambda: NOW
    )


def ids(*events: ClaimedEvent) -> list[UUID]:
    return [event.envelope.id for event in events]


def test_outcomes_are_counted_by_topic_and_kind(meters: Meters) -> None:
    paid, late, back = (
        claimed("paid", age=2.0),
        claimed("paid", age=400.0),
        claimed("paid", kind=TxKind.ROLLBACK),
    )
    held, doubtful, again = claimed("sent"), claimed("sent"), claimed("sent")
    claim = a_claim(paid, late, back, held, doubtful, again)
    store = metered(Outbox(claim), meters)

    assert store.claim(relay="r", limit=500) is claim
    kept = store.settle(
        claim.token,
        Settlement(
            processed=ids(paid, late, back),
            unsent=ids(held),
            unconfirmed=ids(doubtful),
            retries=[Retry(event_id=again.envelope.id, delay=LEASE, reason="no leader")],
        ),
    )

    assert kept == 6
    events = "shieldtx_relay_events_total"
    assert meters(events, topic="paid", kind="commit", outcome="processed") == 2
    assert meters(events, topic="paid", kind="rollback", outcome="processed") == 1
    assert meters(events, topic="sent", kind="commit", outcome="released") == 1
    assert meters(events, topic="sent", kind="commit", outcome="unconfirmed") == 1
    assert meters(events, topic="sent", kind="commit", outcome="retried") == 1
    age = "shieldtx_relay_publish_age_seconds"
    assert meters(f"{age}_count", topic="paid", kind="commit") == 2
    assert meters(f"{age}_sum", topic="paid", kind="commit") == 402.0
    assert meters(f"{age}_bucket", topic="paid", kind="commit", le="300.0") == 1
    assert meters(f"{age}_count", topic="sent", kind="commit") is None
    assert meters("shieldtx_relay_batch_limit") == 500
    assert meters("shieldtx_relay_claim_seconds_sum") == 1.0
    assert meters("shieldtx_relay_settle_seconds_sum") == 1.0
    assert meters("shieldtx_relay_settle_lost_total") == 0


def test_event_from_the_future_has_the_age_zero(meters: Meters) -> None:
    event = claimed("paid", age=-5.0)
    claim = a_claim(event)
    store = metered(Outbox(claim), meters)
    store.claim(relay="r", limit=1)
    store.settle(claim.token, Settlement(processed=ids(event)))
    assert meters("shieldtx_relay_publish_age_seconds_sum", topic="paid", kind="commit") == 0.0


def test_failed_event_is_counted_once(meters: Meters) -> None:
    event = claimed("paid")
    claim = a_claim(event)
    store = metered(Outbox(claim), meters)
    store.claim(relay="r", limit=1)
    for _ in range(2):
        assert store.fail(claim.token, event.envelope.id, reason="too large", local_rollback=None)
    events = "shieldtx_relay_events_total"
    assert meters(events, topic="paid", kind="commit", outcome="failed") == 1


def test_what_another_relay_has_taken_is_counted_as_lost(meters: Meters) -> None:
    first, second = claimed("paid"), claimed("paid")
    claim = a_claim(first, second)
    outbox = Outbox(claim)
    store = metered(outbox, meters)
    store.claim(relay="r", limit=2)
    outbox.lost = 1
    store.settle(claim.token, Settlement(processed=ids(first)))
    store.fail(claim.token, second.envelope.id, reason="too large", local_rollback=None)
    assert meters("shieldtx_relay_settle_lost_total") == 2
    for outcome in ("processed", "failed"):
        labels = {"topic": "paid", "kind": "commit", "outcome": outcome}
        assert meters("shieldtx_relay_events_total", **labels) == 1


def test_claims_that_are_never_settled_are_forgotten_in_the_end(meters: Meters) -> None:
    claims = [a_claim(claimed("paid")) for _ in range(MOST_CLAIMS + 1)]
    store = metered(Outbox(*claims), meters)
    for _ in claims:
        store.claim(relay="r", limit=1)
    assert store.withdraw(relay="r", renamed="r+1") == 3
    for claim in claims:
        assert store.settle(claim.token, Settlement(processed=ids(*claim.events))) == 1
    labels = {"topic": "paid", "kind": "commit", "outcome": "processed"}
    assert meters("shieldtx_relay_events_total", **labels) == MOST_CLAIMS
    assert not store._claims


def test_nothing_is_kept_of_claims_that_are_settled_or_empty(meters: Meters) -> None:
    event = claimed("paid")
    claim = a_claim(event)
    store = metered(Outbox(claim, a_claim()), meters)
    store.claim(relay="r", limit=1)
    store.settle(claim.token, Settlement(processed=ids(event)))
    store.claim(relay="r", limit=1)
    assert not store._claims
    assert store.until_due(relay="r", since=LEASE, within=LEASE) == LEASE


def test_shards_taken_and_lost_are_counted(meters: Meters) -> None:
    leases = Leases()
    metered_leases = MeteredLeaseStore(leases, meters.of_relay)

    def renewed(*shards: int) -> tuple[Any, ...]:
        leases.owned = frozenset(shards)
        assert metered_leases.renew(relay="r", lease=LEASE).shards == frozenset(shards)
        totals = ("shieldtx_relay_takeovers_total", "shieldtx_relay_leases_lost_total")
        return (meters("shieldtx_relay_shards"), *map(meters, totals))

    assert renewed(1, 2) == (2, 2, 0)
    assert renewed(2, 3, 4) == (3, 4, 1)
    metered_leases.release(relay="r", shards=frozenset({4}))
    assert renewed(2, 3) == (2, 4, 1), "it has released the shard itself"
    metered_leases.leave(relay="r")
    assert meters("shieldtx_relay_shards") == 0


def test_renewals_at_the_same_time_are_counted_once(meters: Meters) -> None:
    """The database lets one of them wait for the other, or skip what it has locked."""

    class Slow(Leases):
        """Leases whose renewal is overtaken by that of another thread."""

        is_overtaken = False

        def renew(self, **given: Any) -> ShardLeases:
            if not self.is_overtaken:
                self.is_overtaken = True
                self.owned = frozenset({1, 2})
                assert metered_leases.renew(**given).shards == {1, 2}
                self.owned = frozenset()
            return super().renew(**given)

    metered_leases = MeteredLeaseStore(Slow(), meters.of_relay)
    assert metered_leases.renew(relay="r", lease=LEASE).shards == frozenset()
    assert meters("shieldtx_relay_takeovers_total") == 2
    assert meters("shieldtx_relay_leases_lost_total") == 0
    assert meters("shieldtx_relay_shards") == 2
    metered_leases.renew(relay="r", lease=LEASE)
    assert meters("shieldtx_relay_leases_lost_total") == 2


def test_messages_are_counted_by_destination_and_error(meters: Meters) -> None:
    broker = Broker(
        DeliveryOutcome.ACKNOWLEDGED, DeliveryOutcome.ACKNOWLEDGED, DeliveryOutcome.UNCONFIRMED
    )
    clock = iter([1.0, 1.3])
    publisher = MeteredPublisher(broker, meters.of_relay, clock=lambda: next(clock))
    records = [Record(topic=t, key=None, value=b"") for t in ("a.commit", "a.commit", "b.commit")]

    assert len(publisher.publish(records, timeout=1.0)) == 3

    common = {names.SYSTEM: "kafka", names.OPERATION_NAME: "send"}
    to_a = {names.DESTINATION: "a.commit", names.ERROR: ""}
    to_b = {names.DESTINATION: "b.commit", names.ERROR: "unconfirmed"}
    assert meters(f"{names.SENT}_total", **common, **to_a) == 2
    assert meters(f"{names.SENT}_total", **common, **to_b) == 1
    kind = {names.OPERATION_TYPE: "send"}
    assert meters(f"{names.OPERATION}_count", **common, **kind, **to_a) == 1
    assert meters(f"{names.OPERATION}_sum", **common, **kind, **to_a) == pytest.approx(0.3)


def test_pauses_of_the_broker_add_up(meters: Meters) -> None:
    broker = Broker()
    publisher = MeteredPublisher(broker, meters.of_relay)
    for pause in (0.0, 1.5, 2.0):
        broker.pause = pause
        assert publisher.pressure().pause == pause
    assert meters("shieldtx_relay_throttled_seconds_total") == 3.5
    publisher.close()
    assert broker.is_closed


def test_topics_beyond_the_limit_share_a_label(meters: Meters) -> None:
    topics = [f"t{n}" for n in range(names.MOST_TOPICS + 2)]
    publisher = MeteredPublisher(
        Broker(*[DeliveryOutcome.ACKNOWLEDGED] * len(topics)), meters.of_relay
    )
    publisher.publish([Record(topic=t, key=None, value=b"") for t in topics], timeout=1.0)
    common = {names.SYSTEM: "kafka", names.OPERATION_NAME: "send", names.ERROR: ""}
    assert meters(f"{names.SENT}_total", **common, **{names.DESTINATION: OTHER}) == 2


@pytest.fixture
def failing(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> Meters:
    """Metrics each of which raises, as where prometheus_client writes into a file that is full."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    for kind in (Counter, Gauge, Histogram):
        for method in {"inc", "set", "observe", "labels"} & set(dir(kind)):
            monkeypatch.setattr(kind, method, fail)
    return meters


def test_failing_metric_changes_no_outcome(
    failing: Meters, own_log: pytest.LogCaptureFixture
) -> None:
    event = claimed("paid")
    claim = a_claim(event)
    store = metered(Outbox(claim), failing)
    assert store.claim(relay="r", limit=1) is claim
    assert store.settle(claim.token, Settlement(processed=ids(event))) == 1
    assert store.fail(claim.token, event.envelope.id, reason="too large", local_rollback=None)
    leases = MeteredLeaseStore(Leases(), failing.of_relay)
    assert leases.renew(relay="r", lease=LEASE).shards == frozenset()
    leases.release(relay="r", shards=frozenset())
    leases.leave(relay="r")
    publisher = MeteredPublisher(Broker(DeliveryOutcome.ACKNOWLEDGED), failing.of_relay)
    (delivery,) = publisher.publish([Record(topic="a", key=None, value=b"")], timeout=1.0)
    assert delivery.outcome is DeliveryOutcome.ACKNOWLEDGED
    assert not publisher.pressure()
    (entry,) = logged(own_log.records, "metric_failed")
    assert "no space left on device" in str(own_log.records[0].exc_info)
    assert entry == {}, "no field, and once a minute"
