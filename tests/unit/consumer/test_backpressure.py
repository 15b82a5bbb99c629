"""Partitions with too many open events: paused at the limit, and polled again well below it."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx.consumer.backpressure import (
    LOW,
    SAMPLE_EVERY,
    PartitionBackpressure,
    paused_after,
)
from shieldtx.domain.log_throttle import LOG_EVERY
from shieldtx.domain.sampler import SHARE
from shieldtx.ports.broker import ReceivedRecord, TopicPartition
from tests.support.log_records import fields_of, logged

LIMIT = 10
A: TopicPartition = ("orders.commit", 0)
B: TopicPartition = ("orders.commit", 1)
PLACES = st.sampled_from([A, B])
COUNTS = st.dictionaries(PLACES, st.integers(min_value=1, max_value=3 * LIMIT))


class Inbox:
    """The number of open events, and a clock, both set by hand."""

    def __init__(self) -> None:
        self.open: Counter[TopicPartition] = Counter()
        self.samples = 0
        self.now = 1000.0
        self.took = 0.0
        self.backpressure = PartitionBackpressure(
            group="stock", limit=LIMIT, count=self.count, clock=lambda: self.now
        )

    def count(self) -> Counter[TopicPartition]:
        self.samples += 1
        self.now += self.took
        return +self.open

    def receive(self, place: TopicPartition, count: int, *, finished: int = 0) -> None:
        self.open[place] += count - finished
        self.backpressure.received(
            ReceivedRecord(topic=place[0], partition=place[1], offset=n, key=None, value=None)
            for n in range(count)
        )

    def paused(self) -> frozenset[TopicPartition]:
        self.backpressure.sample()
        return self.backpressure.paused


@pytest.fixture
def inbox() -> Inbox:
    inbox = Inbox()
    assert not inbox.paused()
    return inbox


@given(st.frozensets(PLACES), COUNTS)
def test_partition_pauses_at_the_limit_and_resumes_when_drained(
    paused: frozenset[TopicPartition], pending: dict[TopicPartition, int]
) -> None:
    following = paused_after(paused, pending, limit=LIMIT)
    for place in (A, B):
        count = pending.get(place, 0)
        if count >= LIMIT:
            assert place in following
        elif count <= LIMIT * LOW:
            assert place not in following
        else:
            assert (place in following) == (place in paused), "between the marks nothing changes"


@given(st.lists(st.tuples(PLACES, st.integers(1, 4), st.integers(0, 4), st.floats(0, 0.4))))
def test_partition_never_exceeds_the_limit_by_a_batch(
    batches: list[tuple[TopicPartition, int, int, float]],
) -> None:
    inbox = Inbox()
    for place, count, finished, seconds in batches:
        inbox.now += seconds
        if place in inbox.paused():
            inbox.open[place] = max(0, inbox.open[place] - finished)
            continue
        inbox.receive(place, count, finished=min(finished, count))
        assert inbox.open[place] < LIMIT + count


def test_inbox_is_sampled_seldom_without_a_backlog(inbox: Inbox) -> None:
    for _ in range(LIMIT - 1):
        inbox.receive(A, 1, finished=1)
        assert not inbox.paused()
    assert inbox.samples == 1
    inbox.now += SAMPLE_EVERY
    assert not inbox.paused()
    assert inbox.samples == 2


def test_partition_that_may_be_at_the_limit_is_sampled_first(
    inbox: Inbox,
) -> None:
    """The sample comes before the next batch."""
    inbox.receive(A, LIMIT, finished=LIMIT)
    assert not inbox.paused()
    assert inbox.samples == 2
    inbox.receive(A, LIMIT)
    inbox.receive(B, 1)
    assert inbox.paused() == {A}


def test_paused_partition_is_polled_at_half_of_its_limit(
    inbox: Inbox, own_log: pytest.LogCaptureFixture
) -> None:
    own_log.set_level(logging.INFO)
    inbox.receive(A, LIMIT)
    assert inbox.paused() == {A}
    inbox.open[A] = LIMIT // 2 + 1
    inbox.now += SAMPLE_EVERY
    assert inbox.paused() == {A}
    inbox.open[A] = LIMIT // 2
    assert inbox.paused() == {A}, "not before the next look"
    inbox.now += SAMPLE_EVERY
    assert not inbox.paused()
    assert [fields_of(record) for record in own_log.records] == [
        {
            "action": "partition_paused",
            "group": "stock",
            "topic": "orders.commit",
            "partition": 0,
            "count": 10,
            "limit": 10,
        },
        {
            "action": "partition_resumed",
            "group": "stock",
            "topic": "orders.commit",
            "partition": 0,
        },
    ]


def test_paused_partition_is_logged_once_a_minute(
    inbox: Inbox, own_log: pytest.LogCaptureFixture
) -> None:
    inbox.receive(A, LIMIT)
    for _ in range(3):
        inbox.paused()
        inbox.now += LOG_EVERY / 2
    assert len(logged(own_log.records, "partition_paused")) == 2


def test_paused_partition_is_sampled_at_once_on_demand(inbox: Inbox) -> None:
    inbox.backpressure.sample_paused()
    assert inbox.samples == 1, "none is paused"
    inbox.receive(A, LIMIT)
    assert inbox.paused() == {A}
    inbox.open[A] = 0
    inbox.backpressure.sample_paused()
    assert not inbox.backpressure.paused


def test_slow_samples_are_taken_seldom(inbox: Inbox) -> None:
    inbox.took = 2.0
    inbox.now += SAMPLE_EVERY
    inbox.paused()
    inbox.now += SHARE * 2.0 - 0.5
    inbox.paused()
    assert inbox.samples == 2
    inbox.now += 1
    inbox.paused()
    assert inbox.samples == 3
