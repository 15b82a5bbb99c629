"""What the metrics of a consumer count."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.metrics import names
from shieldtx.metrics.consumer_metrics import ConsumerMetrics, GroupMeter, MeteredSubscriber
from shieldtx.ports.broker import ReceivedRecord, TopicPartition
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from tests.support.log_records import logged

KAFKA = {names.SYSTEM: "kafka", names.GROUP: "stock"}


class Meters:
    """The metrics of a consumer, and their values by name and labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.of_consumer = ConsumerMetrics(self.registry)
        self.of_group = GroupMeter(self.of_consumer, group="stock", topic_prefix="test.")

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


class Topics:
    """A subscriber that returns given records."""

    def __init__(self, *records: ReceivedRecord) -> None:
        self.records = list(records)
        self.calls: list[str] = []

    def poll(self, *, limit: int, **_: Any) -> Sequence[ReceivedRecord]:
        return self.records[:limit]

    def commit(self, _: Sequence[ReceivedRecord]) -> None:
        self.calls.append("commit")

    def rewind(self, _: Sequence[ReceivedRecord]) -> None:
        self.calls.append("rewind")

    def pause(self, _: AbstractSet[TopicPartition]) -> None:
        self.calls.append("pause")

    def has_caught_up(self) -> bool:
        return True

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def meters() -> Meters:
    return Meters()


def event(topic: str, kind: TxKind = TxKind.COMMIT) -> Envelope:
    return Envelope(
        id=uuid4(),
        type=topic,
        source="orders",
        topic=topic,
        payload="null",
        time=datetime.now(UTC),
        kind=kind,
    )


def attempt(topic: str, kind: TxKind = TxKind.COMMIT) -> Attempt:
    return Attempt(envelope=event(topic, kind), group="stock", number=1, token=uuid4())


def test_outcomes_are_counted_by_topic_and_kind(meters: Meters) -> None:
    meters.of_group.ended([attempt("paid"), attempt("paid")], AttemptOutcome.APPLIED)
    meters.of_group.ended([attempt("paid", TxKind.ROLLBACK)], AttemptOutcome.COMPENSATED)
    meters.of_group.ended([attempt("sent")], AttemptOutcome.RETRIED)
    attempts, group = "shieldtx_consumer_attempts_total", {"group": "stock"}
    assert meters(attempts, topic="paid", kind="commit", outcome="applied", **group) == 2
    assert meters(attempts, topic="paid", kind="rollback", outcome="compensated", **group) == 1
    assert meters(attempts, topic="sent", kind="commit", outcome="retried", **group) == 1


def test_calls_are_measured_by_destination_and_error(meters: Meters) -> None:
    for took in (0.2, 0.4):
        meters.of_group.called(event("paid"), took=took)
    meters.of_group.called(event("paid"), took=3.0, error=LookupError("customer 17"))
    place = {names.OPERATION_NAME: "process", names.DESTINATION: "test.paid.commit", **KAFKA}
    assert meters(f"{names.PROCESSED}_sum", **place, error_type="") == pytest.approx(0.6)
    assert meters(f"{names.PROCESSED}_count", **place, error_type="LookupError") == 1


def test_records_are_counted_by_topic(meters: Meters) -> None:
    records = [
        ReceivedRecord(topic=topic, partition=0, offset=n, key=None, value=b"")
        for n, topic in enumerate(["a", "a", "b"])
    ]
    topics = Topics(*records)
    subscriber = MeteredSubscriber(topics, meters.of_consumer, group="stock")
    assert subscriber.poll(timeout=0.0, limit=10) == records
    labels = {names.OPERATION_NAME: "poll", **KAFKA}
    assert meters(f"{names.CONSUMED}_total", **labels, **{names.DESTINATION: "a"}) == 2
    assert meters(f"{names.CONSUMED}_total", **labels, **{names.DESTINATION: "b"}) == 1
    subscriber.commit(records)
    subscriber.rewind(records)
    assert subscriber.has_caught_up()
    subscriber.close()
    assert topics.calls == ["commit", "rewind", "close"]


def test_paused_partitions_are_counted_until_they_are_read_again(meters: Meters) -> None:
    subscriber = MeteredSubscriber(Topics(), meters.of_consumer, group="stock")
    paused = "shieldtx_consumer_paused_partitions"
    subscriber.pause({("a.commit", 0), ("a.commit", 1), ("b.commit", 0)})
    of_a, of_b = (
        {names.GROUP: "stock", names.DESTINATION: topic} for topic in ("a.commit", "b.commit")
    )
    assert meters(paused, **of_a) == 2
    subscriber.pause({("b.commit", 0)})
    assert meters(paused, **of_a) == 0
    assert meters(paused, **of_b) == 1
    subscriber.close()
    assert meters(paused, **of_b) == 0


def test_failing_metric_loses_no_record_and_no_attempt(
    meters: Meters, monkeypatch: pytest.MonkeyPatch, own_log: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    for kind in (Counter, Gauge, Histogram):
        monkeypatch.setattr(kind, "labels", fail)
    record = ReceivedRecord(topic="a", partition=0, offset=0, key=None, value=b"")
    subscriber = MeteredSubscriber(Topics(record), meters.of_consumer, group="stock")
    assert subscriber.poll(timeout=0.0, limit=1) == [record]
    subscriber.pause({("a", 0)})
    meters.of_group.ended([attempt("paid")], AttemptOutcome.APPLIED)
    meters.of_group.called(event("paid"), took=0.1, error=LookupError())
    assert len(logged(own_log.records, "metric_failed")) == 1
