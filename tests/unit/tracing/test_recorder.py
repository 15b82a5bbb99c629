"""The trace recorder: the entries that it collects, writes, and drops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from uuid import uuid4

import pytest

from shieldtx.domain.log_throttle import LOG_EVERY
from shieldtx.domain.states import TxKind
from shieldtx.hooks.contexts import ConsumeContext, SendContext
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.ports.tracing import TraceEntry
from shieldtx.tracing.recorder import TraceRecorder
from tests.support.log_records import fields_of, logged

NEVER = timedelta(days=1)


class Kept:
    """Keeps entries in a list; a test can make it fail or hang."""

    def __init__(self) -> None:
        self.batches: list[Sequence[TraceEntry]] = []
        self.error: Exception | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.at_work = threading.Event()

    def write(self, entries: Sequence[TraceEntry], *, clock: Callable[[], float]) -> None:  # noqa: ARG002
        self.at_work.set()
        self.may_go_on.wait(10)
        if self.error is not None:
            raise self.error
        self.batches.append(list(entries))

    @property
    def entries(self) -> list[TraceEntry]:
        return [entry for batch in self.batches for entry in batch]


def sent(key: str = "k", **given: object) -> SendContext:
    standard = {
        "event_id": uuid4(),
        "type": "orders.placed",
        "source": "orders",
        "topic": "orders",
        "kind": TxKind.COMMIT,
        "key": key,
        "attempt": 1,
        "waited": 0.5,
        "outcome": DeliveryOutcome.ACKNOWLEDGED,
        "took": 0.25,
        "partition": 3,
        "offset": 17,
    }
    return SendContext(**(standard | given))  # type: ignore[arg-type]


def consumed(**given: object) -> ConsumeContext:
    standard = {
        "event_id": uuid4(),
        "type": "orders.placed",
        "source": "orders",
        "topic": "orders",
        "kind": TxKind.COMMIT,
        "key": "k",
        "group": "stock",
        "attempt": 2,
        "partition": 3,
        "offset": 17,
        "outcome": AttemptOutcome.RETRIED,
        "error": "ValueError: no",
    }
    return ConsumeContext(**(standard | given))  # type: ignore[arg-type]


def after_send(hooks: Hooks) -> Callable[[SendContext], object]:
    [hook] = hooks._after_send
    return hook


@pytest.fixture
def kept() -> Kept:
    return Kept()


def tracer(kept: Kept, **options: object) -> tuple[TraceRecorder, Hooks]:
    made, hooks = TraceRecorder(lambda: kept, **options), Hooks()  # type: ignore[arg-type]
    made.attach(hooks)
    return made, hooks


def test_each_ended_attempt_becomes_an_entry(kept: Kept) -> None:
    made, hooks = tracer(kept, every=NEVER, clock=lambda: 7.0)
    send, attempt = sent(), consumed()
    after_send(hooks)(send)
    hooks._on_consume_error[0](attempt)
    made.flush()
    assert kept.entries == [
        TraceEntry(
            event_id=send.event_id,
            group=None,
            attempt=1,
            outcome="ACKNOWLEDGED",
            ended=7.0,
            waited=0.5,
            took=0.25,
            partition=3,
            offset=17,
        ),
        TraceEntry(
            event_id=attempt.event_id,
            group="stock",
            attempt=2,
            outcome="RETRIED",
            ended=7.0,
            partition=3,
            offset=17,
            reason="ValueError: no",
        ),
    ]
    made.close()


def test_entries_are_written_periodically(kept: Kept, eventually: Callable[..., None]) -> None:
    made, hooks = tracer(kept, every=timedelta(seconds=0.01))
    after_send(hooks)(sent())
    eventually(lambda: len(kept.entries) == 1, "the entry is written")
    made.close()


def test_close_writes_the_remaining_entries_and_ends_the_thread(kept: Kept) -> None:
    before = writers()
    made, hooks = tracer(kept, every=NEVER)
    after_send(hooks)(sent())
    assert writers() - before
    made.close()
    assert len(kept.entries) == 1
    assert not writers() - before


def test_close_waits_for_a_thread_that_is_starting(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = writers()
    made, hooks = tracer(kept, every=NEVER)
    start, is_starting, may_start = threading.Thread.start, threading.Event(), threading.Event()

    def start_late(thread: threading.Thread) -> None:
        if thread.name == "shieldtx-trace":
            is_starting.set()
            may_start.wait(10)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(after_send(hooks), sent())
        assert is_starting.wait(10)
        closing = pool.submit(made.close)
        # A close() that does not wait fails within this time.
        wait([closing], timeout=0.2)
        may_start.set()
        sending.result()
        closing.result()
    assert not writers() - before


def writers() -> set[threading.Thread]:
    """Return the threads that write a trace, including those of other tests' tracers."""
    return {t for t in threading.enumerate() if t.name == "shieldtx-trace"}


def test_tracer_without_entries_has_neither_thread_nor_store() -> None:
    before = writers()

    def store() -> Kept:
        raise AssertionError("nobody needs it")

    made = TraceRecorder(store)
    made.flush()
    made.close()
    assert not writers() - before


def test_entries_are_written_in_batches(kept: Kept) -> None:
    made, hooks = tracer(kept, every=NEVER, batch_size=4)
    for _ in range(10):
        after_send(hooks)(sent())
    made.flush()
    assert [len(batch) for batch in kept.batches] == [4, 4, 2]
    made.close()


def test_full_buffer_drops_entries_and_logs_it_once_a_minute(
    kept: Kept, own_log: pytest.LogCaptureFixture
) -> None:
    """The latest entries are dropped."""
    now = [0.0]
    made, hooks = tracer(kept, every=NEVER, most=3, clock=lambda: now[0])
    for key in "abcde":
        after_send(hooks)(sent(key))
    made.flush()
    assert len(kept.entries) == 3
    assert [fields_of(r) for r in own_log.records] == [{"action": "trace_entries_lost", "count": 2}]
    for key in "abcde":
        after_send(hooks)(sent(key))
    made.flush()
    assert len(own_log.records) == 1
    now[0] += LOG_EVERY
    made.flush()
    assert len(own_log.records) == 2
    made.close()


def test_entries_that_the_database_refuses_are_dropped(
    kept: Kept, own_log: pytest.LogCaptureFixture
) -> None:
    """Later entries are written."""
    made, hooks = tracer(kept, every=NEVER)
    kept.error = ConnectionError("the database is away")
    after_send(hooks)(sent())
    made.flush()
    [failed] = logged(own_log.records, "trace_not_written")
    assert failed == {"error": "ConnectionError: the database is away"}
    kept.error = None
    later = sent()
    after_send(hooks)(later)
    made.flush()
    assert [entry.event_id for entry in kept.entries] == [later.event_id]
    made.close()


def test_no_event_waits_for_a_database_that_hangs(kept: Kept) -> None:
    made, hooks = tracer(kept, every=timedelta(seconds=0.01), most=5)
    kept.may_go_on.clear()
    after_send(hooks)(sent())
    assert kept.at_work.wait(5)
    for _ in range(20):
        after_send(hooks)(sent())
    # Closing does not wait for the database either.
    made.close(within=timedelta(seconds=0.05))
    assert kept.entries == []
    kept.may_go_on.set()


def test_entries_after_a_close_are_written_too(kept: Kept) -> None:
    made, hooks = tracer(kept, every=NEVER)
    after_send(hooks)(sent())
    made.close()
    after_send(hooks)(sent())
    made.close()
    assert len(kept.entries) == 2
