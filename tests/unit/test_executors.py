"""A single thread makes each call once and in order, even if no thread can be started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from shieldtx._executors import SingleThread


@pytest.fixture
def executor() -> Iterator[SingleThread]:
    executor = SingleThread("shieldtx-tested")
    yield executor
    executor.shutdown()


def no_thread_for(monkeypatch: pytest.MonkeyPatch, starts: int) -> None:
    """Let the first `starts` starts of threads fail, as at a limit of threads."""
    start = threading.Thread.start
    failures = iter(range(starts))

    def refusing(thread: threading.Thread) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)


def noting(made: list[tuple[int, bool]], number: int) -> Callable[[], int]:
    def call() -> int:
        made.append((number, threading.current_thread() is threading.main_thread()))
        return number

    return call


@pytest.mark.parametrize("starts", [0, 1, 2, 4])
def test_each_call_is_made_once_and_in_order(
    executor: SingleThread, monkeypatch: pytest.MonkeyPatch, starts: int
) -> None:
    no_thread_for(monkeypatch, starts)
    made: list[tuple[int, bool]] = []
    futures = [executor.submit(noting(made, number)) for number in range(4)]
    assert [future.result(10) for future in futures] == list(range(4))
    # The calls that the pool had queued when it could not start its thread come before this one.
    executor.submit(noting(made, 4)).result(10)
    assert [number for number, _ in made] == list(range(5))
    assert [here for _, here in made] == [number < starts for number in range(5)]


def test_error_is_raised_where_the_result_is_requested(
    executor: SingleThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_thread_for(monkeypatch, 1)

    def fail() -> None:
        raise OSError("away")

    for _ in range(2):
        future = executor.submit(fail)
        with pytest.raises(OSError, match="away"):
            future.result(10)


def test_after_the_shutdown_calls_run_in_the_caller_thread(executor: SingleThread) -> None:
    made: list[tuple[int, bool]] = []
    executor.submit(noting(made, 0)).result(10)
    executor.shutdown()
    executor.submit(noting(made, 1)).result(10)
    assert made == [(0, False), (1, True)]
