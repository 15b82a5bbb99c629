"""Lanes of a consumer, in threads or on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shieldtx._executors import SingleThread
from shieldtx.scheduling.settled import results_of

T = TypeVar("T")


class ThreadLanes:
    """Lanes in threads, for plain handlers (the port Lanes)."""

    def __init__(self, count: int, *, name: str) -> None:
        """Start no thread yet; `name` is the beginning of their names."""
        self.count = count
        self._threads = [SingleThread(f"{name}-{number}") for number in range(count)]

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run each call in a thread of its own."""
        futures = [each.submit(call) for each, call in zip(self._threads, calls, strict=False)]
        errors = [future.exception() for future in futures]
        return results_of(
            [
                (None, error) if error is not None else (future.result(), None)
                for future, error in zip(futures, errors, strict=True)
            ]
        )

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown()


class LoopLanes:
    """Lanes on an event loop, for coroutine handlers (the port Lanes)."""

    def __init__(self, count: int, *, run: Callable[[Sequence[Callable[[], Any]]], Any]) -> None:
        """Run the calls with `run`, on a loop that serves others as well and has its own owner."""
        self.count = count
        self._run = run

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run each call in a task of its own."""
        results: list[T] = self._run(calls)
        return results

    def close(self) -> None:
        """Leave the loop to its owner."""
