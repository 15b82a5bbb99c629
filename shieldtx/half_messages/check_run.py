"""One run of checks: calls checkers of local transactions in threads, under deadlines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shieldtx.domain.states import LocalOutcome
from shieldtx.ports.half_messages import CheckResult, DueCheck


class _Running(NamedTuple):
    check: DueCheck
    deadline: float


class CheckRun:
    """The checks of one batch, made by a few threads that end with it.

    A thread whose check exceeds its deadline is given up: the run does not wait for it, and ignores
    its result. The other threads continue with the remaining checks.
    """

    def __init__(
        self,
        checks: Sequence[DueCheck],
        make_check: Callable[[DueCheck], CheckResult],
        *,
        may_begin: Callable[[], bool],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make each check if `may_begin` is true at its start; `make_check` raises nothing."""
        self._left = deque(checks)
        self._make_check = make_check
        self._may_begin = may_begin
        self._timeout = timeout
        self._clock = clock
        self._threads: set[threading.Thread] = set()
        self._running: dict[threading.Thread, _Running] = {}
        self._hanging: set[threading.Thread] = set()
        self._answers: list[CheckResult] = []
        self._all_done = threading.Condition()

    @property
    def hanging(self) -> int:
        """The number of threads that have not returned from a check that was given up."""
        with self._all_done:
            return len(self._hanging)

    def begin(self, *, threads: int, name: str) -> None:
        """Start the threads."""
        with self._all_done:
            for _ in range(min(threads, len(self._left))):
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads.add(thread)

    def answers(self, *, within: float) -> Iterator[list[CheckResult]]:
        """Yield the new results, at least each `within` seconds, until all threads have ended."""
        is_over = False
        while not is_over:
            with self._all_done:
                self._all_done.wait_for(lambda: not self._threads, self._patience(within))
                self._give_up_late_ones()
                answers, self._answers = self._answers, []
                is_over = not self._threads
            yield answers

    def end(self) -> list[DueCheck]:
        """Begin no further check, wait for none, and return the checks that were not made."""
        with self._all_done:
            unmade = list(self._left)
            self._left.clear()
            for thread in list(self._running):
                self._give_up(thread)
            return unmade

    def _work(self) -> None:
        thread = threading.current_thread()
        answer = None
        while (check := self._next(thread, answer)) is not None:
            answer = self._make_check(check)

    def _next(self, thread: threading.Thread, answer: CheckResult | None) -> DueCheck | None:
        """Record the result of a thread, unless it was given up, and return its next check."""
        with self._all_done:
            if thread in self._hanging:
                self._hanging.remove(thread)
                return None
            if answer is not None:
                del self._running[thread]
                self._answers.append(answer)
            if self._left and self._may_begin():
                check = self._left.popleft()
                self._running[thread] = _Running(check, self._clock() + self._timeout)
                return check
            self._threads.remove(thread)
            if not self._threads:
                self._all_done.notify_all()
            return None

    def _patience(self, within: float) -> float:
        now = self._clock()
        waits = (running.deadline - now for running in self._running.values())
        return max(0.0, min(within, *waits, within))

    def _give_up_late_ones(self) -> None:
        now = self._clock()
        late = [thread for thread, running in self._running.items() if running.deadline <= now]
        for thread in late:
            reason = f"no answer within {self._timeout:g} s"
            check = self._running[thread].check
            self._answers.append(CheckResult(check, LocalOutcome.UNKNOWN, reason))
            self._give_up(thread)

    def _give_up(self, thread: threading.Thread) -> None:
        del self._running[thread]
        self._threads.remove(thread)
        self._hanging.add(thread)
