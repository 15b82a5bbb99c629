"""The event loop of an application's coroutine functions: its errors, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from shieldtx._coroutines import wait_for
from shieldtx.scheduling import event_loop
from shieldtx.scheduling.event_loop import EventLoop
from shieldtx.scheduling.lanes import ThreadLanes


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop("test-loop")
    yield made
    made.close()


def awaiting(seconds: float = 0.0, result: object = None):
    return lambda: wait_for(asyncio.sleep(seconds, result))


def raising(error: BaseException):
    def call() -> None:
        wait_for(asyncio.sleep(0))
        raise error

    return call


def test_results_are_in_the_order_of_the_calls(loop: EventLoop) -> None:
    assert loop.run([awaiting(0.05, "slow"), awaiting(0, "quick")]) == ["slow", "quick"]


def test_all_calls_end_before_the_first_error_is_raised(loop: EventLoop) -> None:
    ended: list[bool] = []

    def later() -> None:
        wait_for(asyncio.sleep(0.05))
        ended.append(True)

    with pytest.raises(ValueError, match="one"):
        loop.run([raising(ValueError("one")), later, raising(ValueError("two"))])
    assert ended == [True]


def test_system_exit_is_raised_before_other_errors(loop: EventLoop) -> None:
    with pytest.raises(SystemExit):
        loop.run([raising(ValueError("one")), raising(SystemExit(3))])
    # It came from a call, and not from a task: the loop goes on.
    assert loop.run([awaiting(0, 7)]) == [7]


def test_system_exit_of_a_task_ends_the_loop_for_good(loop: EventLoop) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def start() -> None:
        task = asyncio.create_task(leave())
        await asyncio.sleep(10)
        await task

    with pytest.raises(SystemExit):
        loop.run([lambda: wait_for(start()), awaiting(10)])
    with pytest.raises(SystemExit):
        loop.run([awaiting()])


def test_a_call_on_the_loop_cannot_wait_for_another(loop: EventLoop) -> None:
    with pytest.raises(RuntimeError, match="await it instead"):
        loop.run([lambda: loop.run([awaiting()])])


def test_a_loop_that_cannot_be_made_is_an_error(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor() -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "new_event_loop", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            loop.run([awaiting()])
        loop.close()
    assert loop.run([awaiting(0, 7)]) == [7]


def test_close_cancels_tasks_and_then_makes_the_last_calls(loop: EventLoop) -> None:
    order: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            order.append("cancelled")
            raise

    async def start() -> None:
        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    loop.run([lambda: wait_for(start())])
    loop.close([lambda: order.append("last")])
    assert order == ["cancelled", "last"]


def test_close_does_not_wait_for_a_task_that_goes_on(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_PATIENCE_S", 0.1)
    may_end = threading.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    async def start() -> None:
        tasks.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    loop.run([lambda: wait_for(start())])
    loop.close()
    may_end.set()


def test_a_closed_loop_starts_again(loop: EventLoop) -> None:
    loop.run([awaiting()])
    loop.close()
    loop.close()
    assert loop.run([awaiting(0, 7)]) == [7]


def test_threads_raise_the_error_that_ends_the_process_first() -> None:
    lanes = ThreadLanes(3, name="test")

    def leave() -> None:
        raise SystemExit(3)

    def fail() -> None:
        raise ValueError("one")

    with pytest.raises(SystemExit):
        lanes.run([fail, leave, fail])
    with pytest.raises(ValueError, match="one"):
        lanes.run([fail, lambda: None])
    assert lanes.run([lambda: 1, lambda: 2]) == [1, 2]
    lanes.close()
