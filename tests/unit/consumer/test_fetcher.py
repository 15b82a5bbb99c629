"""Fetched and prefetched records: none is lost, none is out of order."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from shieldtx.brokers import cloudevents, decoding
from shieldtx.consumer.fetcher import COMMIT_EVERY, BlockingFetcher, PrefetchingFetcher
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope
from shieldtx.errors import BrokerUnavailable
from shieldtx.ports.broker import ReceivedRecord, Record, Subscriber, TopicPartition
from shieldtx.ports.consumer import FetchedBatch
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.log_records import logged
from tests.support.manual_clock import ManualClock

TOPIC = "orders.placed.commit"


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.topics().create([TOPIC], partitions=1, replication=1)
    return broker


@pytest.fixture
def group() -> ConsumerGroup:
    group = ConsumerGroup("stock", EventTypeRegistry())
    group.handles("orders.placed")(lambda session, event: None)
    return group


class Watched:
    """A subscriber that counts its polls, and checks that one thread at a time uses it."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._in_use = threading.Lock()
        self.polls = 0
        self.commits = 0
        self.closes = 0

    def poll(self, *, timeout: float, limit: int, limit_bytes: int) -> list[ReceivedRecord]:
        with self._alone():
            self.polls += 1
            polled = self._subscriber.poll(timeout=timeout, limit=limit, limit_bytes=limit_bytes)
            return list(polled)

    def commit(self, records: tuple[ReceivedRecord, ...]) -> None:
        with self._alone():
            self._subscriber.commit(records)
            self.commits += 1

    def rewind(self, records: tuple[ReceivedRecord, ...]) -> None:
        with self._alone():
            self._subscriber.rewind(records)

    def pause(self, places: frozenset[TopicPartition]) -> None:
        with self._alone():
            self._subscriber.pause(places)

    def has_caught_up(self) -> bool:
        with self._alone():
            return self._subscriber.has_caught_up()

    def close(self) -> None:
        with self._alone():
            self._subscriber.close()
            self.closes += 1

    def _alone(self) -> threading.Lock:
        assert not self._in_use.locked(), "two threads use the subscriber"
        return self._in_use


@pytest.fixture
def subscriber(broker: MemoryBroker) -> Watched:
    return Watched(broker.subscriber("stock", [TOPIC]))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def fetcher(
    group: ConsumerGroup, subscriber: Watched, clock: ManualClock
) -> Iterator[PrefetchingFetcher]:
    decode = partial(decoding.decode, prefix="")
    direct = BlockingFetcher(group=group, subscriber=subscriber, decode=decode)
    fetcher = PrefetchingFetcher(direct, group="stock", clock=clock)
    yield fetcher
    fetcher.close()


def fill(broker: MemoryBroker, events: range, of_type: str = "orders.placed") -> None:
    records = [
        cloudevents.encode(
            Envelope(
                id=uuid.UUID(int=n),
                type=of_type,
                source="orders",
                topic="orders.placed",
                payload=str(n),
                time=datetime.now(UTC),
            ),
            "",
        )
        for n in events
    ]
    broker.publisher().publish(records, timeout=1)


def taken(batch: FetchedBatch) -> list[int]:
    return [arrival.envelope.id.int for arrival in batch.arrivals]


def committed(broker: MemoryBroker) -> int:
    return broker.committed("stock").get((TOPIC, 0), 0)


def test_full_batch_is_followed_by_a_prefetch(
    broker: MemoryBroker,
    fetcher: PrefetchingFetcher,
    subscriber: Watched,
    eventually: Callable[..., None],
) -> None:
    fill(broker, range(3))
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]
    eventually(lambda: subscriber.polls == 2, "the second batch is read")
    assert not fetcher.has_caught_up()
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [2]
    assert fetcher.has_caught_up()


def test_partial_batch_is_not_followed_by_a_prefetch(
    broker: MemoryBroker, fetcher: PrefetchingFetcher, subscriber: Watched
) -> None:
    fill(broker, range(2))
    assert taken(fetcher.fetch(timeout=0, limit=3)) == [0, 1]
    fill(broker, range(2, 4))
    assert not fetcher.has_caught_up()  # waits for the thread
    assert subscriber.polls == 1
    assert taken(fetcher.fetch(timeout=0, limit=3)) == [2, 3]


def test_rewound_batch_takes_prefetched_records_with_it(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(5))
    batch = fetcher.fetch(timeout=0, limit=2)
    fetcher.rewind(batch)
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [2, 3]
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [4]


def test_offsets_are_committed_periodically_and_when_idle(
    broker: MemoryBroker, fetcher: PrefetchingFetcher, subscriber: Watched, clock: ManualClock
) -> None:
    fill(broker, range(10))
    for _ in range(3):
        fetcher.commit(fetcher.fetch(timeout=0, limit=2))
    assert not fetcher.has_caught_up()
    assert (subscriber.commits, committed(broker)) == (1, 2)
    clock.now += COMMIT_EVERY
    fetcher.commit(fetcher.fetch(timeout=0, limit=2))
    fetcher.commit(fetcher.fetch(timeout=0, limit=2))
    assert not fetcher.fetch(timeout=0, limit=2).records
    assert not fetcher.fetch(timeout=0, limit=2).records
    assert committed(broker) == 10


def test_offsets_of_unfinished_events_are_never_committed(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(6))
    fetcher.commit(fetcher.fetch(timeout=0, limit=2))
    fetcher.fetch(timeout=0, limit=2)
    fetcher.close()
    assert committed(broker) == 2


def test_offsets_of_finished_events_are_committed_at_close(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(6))
    for _ in range(3):
        fetcher.commit(fetcher.fetch(timeout=0, limit=2))
    fetcher.close()
    assert committed(broker) == 6


def test_offsets_deferred_by_an_outage_are_committed_later(
    broker: MemoryBroker, fetcher: PrefetchingFetcher, clock: ManualClock
) -> None:
    fill(broker, range(2))
    batch = fetcher.fetch(timeout=0, limit=5)
    broker.go_down()
    fetcher.commit(batch)
    with pytest.raises(BrokerUnavailable):
        fetcher.fetch(timeout=0, limit=5)
    broker.come_back()
    assert not fetcher.fetch(timeout=0, limit=5).records
    assert not fetcher.fetch(timeout=0, limit=5).records
    assert committed(broker) == 2


def test_outage_during_a_prefetch_loses_nothing(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(2))
    broker.go_down()
    with pytest.raises(BrokerUnavailable):
        fetcher.fetch(timeout=0, limit=2)
    broker.come_back()
    batch = fetcher.fetch(timeout=0, limit=2)
    broker.go_down()
    fetcher.rewind(batch)
    broker.come_back()
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]


class Flaky:
    """A decoder that raises an unexpected error once at each of some calls."""

    def __init__(self, failures: dict[int, BaseException]) -> None:
        self._failures = failures
        self._calls = 0

    def __call__(self, record: ReceivedRecord) -> Envelope:
        self._calls += 1
        if failure := self._failures.pop(self._calls, None):
            raise failure
        return decoding.decode(record, "")


@pytest.mark.parametrize("error", [MemoryError, SystemExit], ids=str)
def test_unexpected_decoding_error_rewinds_the_whole_poll(
    broker: MemoryBroker,
    group: ConsumerGroup,
    subscriber: Watched,
    error: type[BaseException],
) -> None:
    fill(broker, range(3))
    fetcher = BlockingFetcher(
        group=group, subscriber=subscriber, decode=Flaky({2: error("one allocation fails")})
    )
    with pytest.raises(error):
        fetcher.fetch(timeout=0, limit=3)
    assert taken(fetcher.fetch(timeout=0, limit=3)) == [0, 1, 2]


@pytest.mark.parametrize("error", [MemoryError, SystemExit], ids=str)
def test_batch_is_rewound_after_any_error_of_the_prefetch(
    broker: MemoryBroker,
    group: ConsumerGroup,
    subscriber: Watched,
    error: type[BaseException],
) -> None:
    fill(broker, range(4))
    direct = BlockingFetcher(
        group=group, subscriber=subscriber, decode=Flaky({4: error("one allocation fails")})
    )
    fetcher = PrefetchingFetcher(direct, group="stock")
    batch = fetcher.fetch(timeout=0, limit=2)
    fetcher.rewind(batch)
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [2, 3]
    fetcher.close()


def test_records_of_an_interrupted_wait_come_next(
    broker: MemoryBroker, group: ConsumerGroup, subscriber: Watched
) -> None:
    class Interrupted(Future[FetchedBatch]):
        waits = 0

        def exception(self, timeout: float | None = None) -> BaseException | None:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            return super().exception(timeout)

    class Beside(Executor):
        def submit(self, call, /, *args, **kwargs):
            future = Interrupted()
            future.set_result(call(*args, **kwargs))
            return future

    fill(broker, range(2))
    direct = BlockingFetcher(
        group=group, subscriber=subscriber, decode=partial(decoding.decode, prefix="")
    )
    fetcher = PrefetchingFetcher(direct, group="stock", fetch_thread=Beside())
    with pytest.raises(KeyboardInterrupt):
        fetcher.fetch(timeout=0, limit=5)
    assert taken(fetcher.fetch(timeout=0, limit=5)) == [0, 1]


class FailingThread(Executor):
    """Makes its calls at once, except the call with this number, for which no thread starts."""

    def __init__(self, fails_at: int) -> None:
        self._fails_at = fails_at
        self.calls = 0

    def submit(self, call, /, *args, **kwargs):
        self.calls += 1
        if self.calls == self._fails_at:
            raise RuntimeError("can't start new thread")
        future = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  raised with the result
            future.set_exception(error)
        return future


@pytest.mark.parametrize("fails_at", range(1, 14))
def test_failed_thread_start_loses_or_skips_no_record(
    broker: MemoryBroker,
    group: ConsumerGroup,
    subscriber: Watched,
    clock: ManualClock,
    fails_at: int,
) -> None:
    fill(broker, range(7))
    direct = BlockingFetcher(
        group=group, subscriber=subscriber, decode=partial(decoding.decode, prefix="")
    )
    thread = FailingThread(fails_at)
    fetcher = PrefetchingFetcher(direct, group="stock", fetch_thread=thread, clock=clock)
    done: list[int] = []
    gone_back = False
    failures = 0
    for _ in range(10):
        clock.now += 2 * COMMIT_EVERY
        try:
            batch = fetcher.fetch(timeout=0, limit=2)
            if taken(batch)[:1] == [2] and not gone_back:
                gone_back = True
                fetcher.rewind(batch)
                continue
            done += taken(batch)
            fetcher.commit(batch)
        except RuntimeError:
            failures += 1
        assert subscriber.polls == 0 or committed(broker) <= len(done)
    assert (done, committed(broker)) == (list(range(7)), 7)
    assert thread.calls >= fails_at
    assert failures == 1


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_without_threads_records_come_once_and_in_order(
    broker: MemoryBroker,
    fetcher: PrefetchingFetcher,
    monkeypatch: pytest.MonkeyPatch,
    starts: int,
) -> None:
    """The pool puts a call into its queue even if it cannot start a thread."""
    start, failures = threading.Thread.start, iter(range(starts))

    def refusing(thread: threading.Thread) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    fill(broker, range(12))
    done: list[int] = []
    for _ in range(8):
        batch = fetcher.fetch(timeout=0, limit=2)
        done += taken(batch)
        fetcher.commit(batch)
    assert done == list(range(12))


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_failed_rewind_is_repeated_by_the_next_fetch(
    broker: MemoryBroker,
    group: ConsumerGroup,
    subscriber: Watched,
    monkeypatch: pytest.MonkeyPatch,
    fails_at: int,
) -> None:
    rewind, rewinds = subscriber.rewind, 0

    def refusing(records: tuple[ReceivedRecord, ...]) -> None:
        nonlocal rewinds
        rewinds += 1
        if rewinds <= fails_at:
            raise MemoryError
        rewind(records)

    monkeypatch.setattr(subscriber, "rewind", refusing)
    fill(broker, range(6))
    # At first the third batch can neither be decoded nor rewound.
    decode = Flaky({5: MemoryError()})
    direct = BlockingFetcher(group=group, subscriber=subscriber, decode=decode)
    fetcher = PrefetchingFetcher(direct, group="stock", fetch_thread=FailingThread(0))
    batch = fetcher.fetch(timeout=0, limit=2)
    with pytest.raises(MemoryError):
        fetcher.rewind(batch)
    assert not fetcher.has_caught_up()
    with suppress(MemoryError):
        # The consumer does this when a partition is to be paused meanwhile.
        fetcher.rewind(FetchedBatch())
    done: list[int] = []
    for _ in range(12):
        with suppress(MemoryError):
            done += taken(fetcher.fetch(timeout=0, limit=2))
    assert done == list(range(6))


def test_batch_of_an_interrupted_rewind_comes_first(
    broker: MemoryBroker, group: ConsumerGroup, subscriber: Watched
) -> None:
    fill(broker, range(6))
    direct = BlockingFetcher(
        group=group, subscriber=subscriber, decode=partial(decoding.decode, prefix="")
    )
    fetcher = PrefetchingFetcher(direct, group="stock", fetch_thread=FailingThread(0))
    batch = fetcher.fetch(timeout=0, limit=2)
    ahead: Any = fetcher._prefetched
    wait = ahead.exception

    def interrupted(timeout: float | None = None) -> None:
        ahead.exception = wait
        raise KeyboardInterrupt

    ahead.exception = interrupted
    with pytest.raises(KeyboardInterrupt):
        fetcher.rewind(batch)
    assert [taken(fetcher.fetch(timeout=0, limit=2)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_undecodable_and_unhandled_records_are_separated(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(1))
    fill(broker, range(1, 2), of_type="orders.cancelled")
    broker.publisher().publish([Record(topic=TOPIC, key=None, value=b"?")], timeout=1)
    batch = fetcher.fetch(timeout=0, limit=5)
    assert (taken(batch), batch.ignored, len(batch.records)) == ([0], 1, 3)
    assert [parked.record.offset for parked in batch.parked] == [2]


def test_failed_poll_does_not_count_as_caught_up(
    broker: MemoryBroker, group: ConsumerGroup, subscriber: Watched
) -> None:
    fill(broker, range(2))
    fetcher = BlockingFetcher(
        group=group, subscriber=subscriber, decode=Flaky({1: MemoryError("one allocation fails")})
    )
    with pytest.raises(MemoryError):
        fetcher.fetch(timeout=0, limit=2)
    assert not fetcher.has_caught_up()


@pytest.fixture
def fails_once(subscriber: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the subscriber's first rewind fail."""
    rewind, failures = subscriber.rewind, iter([MemoryError("one allocation fails")])

    def failing(records: tuple[ReceivedRecord, ...]) -> None:
        if failure := next(failures, None):
            raise failure
        rewind(records)

    monkeypatch.setattr(subscriber, "rewind", failing)


@pytest.mark.usefixtures("fails_once")
def test_failed_rewind_of_a_poll_is_repeated_by_the_next_fetch(
    broker: MemoryBroker, group: ConsumerGroup, subscriber: Watched
) -> None:
    fill(broker, range(3))
    fetcher = BlockingFetcher(
        group=group, subscriber=subscriber, decode=Flaky({2: MemoryError("one allocation fails")})
    )
    with pytest.raises(MemoryError):
        fetcher.fetch(timeout=0, limit=3)
    assert taken(fetcher.fetch(timeout=0, limit=3)) == [0, 1, 2]


@pytest.mark.usefixtures("fails_once")
def test_rewound_batch_precedes_a_poll_that_failed_after_it(
    broker: MemoryBroker, group: ConsumerGroup, subscriber: Watched
) -> None:
    fill(broker, range(4))
    fetcher = BlockingFetcher(
        group=group, subscriber=subscriber, decode=Flaky({4: MemoryError("one allocation fails")})
    )
    batch = fetcher.fetch(timeout=0, limit=2)
    with pytest.raises(MemoryError):
        fetcher.fetch(timeout=0, limit=2)
    fetcher.rewind(batch)
    assert taken(fetcher.fetch(timeout=0, limit=4)) == [0, 1, 2, 3]


def test_prefetched_records_of_a_paused_partition_come_later(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(5))
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]
    fetcher.pause(frozenset({(TOPIC, 0)}))
    assert taken(fetcher.fetch(timeout=0, limit=2)) == []
    fetcher.pause(frozenset())
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [2, 3]
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [4]


@pytest.mark.usefixtures("fails_once")
def test_pause_that_cannot_rewind_pauses_nothing(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(5))
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]
    with pytest.raises(MemoryError):
        fetcher.pause(frozenset({(TOPIC, 0)}))
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [2, 3]
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [4]


def test_empty_prefetched_batch_counts_as_caught_up(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(2))
    assert taken(fetcher.fetch(timeout=0, limit=2)) == [0, 1]
    assert fetcher.has_caught_up()


def test_without_records_no_offset_is_committed(
    fetcher: PrefetchingFetcher, subscriber: Watched
) -> None:
    assert not fetcher.fetch(timeout=0, limit=2).records
    fetcher.close()
    assert subscriber.commits == 0


def test_offsets_of_a_failed_commit_outlast_the_commits_after_it(
    group: ConsumerGroup, clock: ManualClock
) -> None:
    broker = MemoryBroker()
    topics = [TOPIC, "orders.paid.commit"]
    broker.topics().create(topics, partitions=1, replication=1)
    subscriber = broker.subscriber("stock", topics)
    direct = BlockingFetcher(
        group=group, subscriber=subscriber, decode=partial(decoding.decode, prefix="")
    )
    fetcher = PrefetchingFetcher(direct, group="stock", fetch_thread=FailingThread(0), clock=clock)
    fill(broker, range(1))
    placed = fetcher.fetch(timeout=0, limit=2)
    broker.publisher().publish([Record(topic=topics[1], key=None, value=b"?")], timeout=1)
    paid = fetcher.fetch(timeout=0, limit=2)
    broker.go_down()
    fetcher.commit(placed)
    broker.come_back()
    clock.now += COMMIT_EVERY
    fetcher.commit(paid)
    with pytest.raises(BrokerUnavailable):
        fetcher.fetch(timeout=0, limit=2)
    fetcher.close()
    assert broker.committed("stock") == {(topic, 0): 1 for topic in topics}


def test_close_commits_what_waits_for_a_commit_in_progress(
    broker: MemoryBroker, fetcher: PrefetchingFetcher
) -> None:
    fill(broker, range(3))
    batches = [fetcher.fetch(timeout=0, limit=2) for _ in range(2)]
    for batch in batches:
        fetcher.commit(batch)
    fetcher.close()
    assert committed(broker) == 3


def test_offsets_that_close_cannot_commit_are_logged(
    broker: MemoryBroker, fetcher: PrefetchingFetcher, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, range(3))
    for _ in range(2):
        fetcher.commit(fetcher.fetch(timeout=0, limit=2))
    broker.go_down()
    fetcher.close()
    (fields,) = logged(caplog.records, "offsets_not_committed")
    assert fields["group"] == "stock"
    assert committed(broker) == 2


def test_a_second_close_does_nothing(fetcher: PrefetchingFetcher, subscriber: Watched) -> None:
    fetcher.close()
    fetcher.close()
    assert subscriber.closes == 1


def test_close_leaves_the_group_in_a_thread_of_the_caller(
    broker: MemoryBroker, group: ConsumerGroup, subscriber: Watched
) -> None:
    direct = BlockingFetcher(
        group=group, subscriber=subscriber, decode=partial(decoding.decode, prefix="")
    )
    fetcher = PrefetchingFetcher(direct, group="stock", fetch_thread=ThreadPoolExecutor(1))
    fetcher.fetch(timeout=0, limit=1)
    fetcher.close()
    assert subscriber.closes == 1
