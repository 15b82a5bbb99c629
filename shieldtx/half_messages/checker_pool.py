"""The checker pool: calls checkers of local transactions in threads, under deadlines."""

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


class CheckerPool:
    """The checks of one batch, on their way through a few threads that end with it.

    A thread whose check is over its deadline is given up: nobody waits for it, and what it says is
    not heard. The other threads go on with the rest.
    """

    def __init__(
        self,
        checks: Sequence[DueCheck],
        ask: Callable[[DueCheck], CheckResult],
        *,
        may_begin: Callable[[], bool],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call `ask`, which raises nothing, for each check that `may_begin` when it is its turn."""
        self._left = deque(checks)
        self._ask = ask
        self._may_begin = may_begin
        self._timeout = timeout
        self._clock = clock
        self._askers: set[threading.Thread] = set()
        self._running: dict[threading.Thread, _Running] = {}
        self._hanging: set[threading.Thread] = set()
        self._answers: list[CheckResult] = []
        self._all_done = threading.Condition()

    @property
    def hanging(self) -> int:
        """How many threads have not come back from a check that was given up."""
        with self._all_done:
            return len(self._hanging)

    def begin(self, *, threads: int, name: str) -> None:
        """Start to ask."""
        with self._all_done:
            for _ in range(min(threads, len(self._left))):
                asker = threading.Thread(target=self._work, name=name, daemon=True)
                asker.start()
                self._askers.add(asker)

    def answers(self, *, within: float) -> Iterator[list[CheckResult]]:
        """Hand the answers over, each `within` so many seconds, until nobody asks any more."""
        is_over = False
        while not is_over:
            with self._all_done:
                self._all_done.wait_for(lambda: not self._askers, self._patience(within))
                self._give_up_late_ones()
                answers, self._answers = self._answers, []
                is_over = not self._askers
            yield answers

    def end(self) -> list[DueCheck]:
        """Ask no further, wait for nobody, and return the checks that were not made."""
        with self._all_done:
            unmade = list(self._left)
            self._left.clear()
            for asker in list(self._running):
                self._give_up(asker)
            return unmade

    def _work(self) -> None:
        asker = threading.current_thread()
        answer = None
        while (check := self._next(asker, answer)) is not None:
            answer = self._ask(check)

    def _next(self, asker: threading.Thread, answer: CheckResult | None) -> DueCheck | None:
        """Hear the answer of a thread, unless it was given up, and return what it is to ask."""
        with self._all_done:
            if asker in self._hanging:
                self._hanging.remove(asker)
                return None
            if answer is not None:
                del self._running[asker]
                self._answers.append(answer)
            if self._left and self._may_begin():
                check = self._left.popleft()
                self._running[asker] = _Running(check, self._clock() + self._timeout)
                return check
            self._askers.remove(asker)
            if not self._askers:
                self._all_done.notify_all()
            return None

    def _patience(self, within: float) -> float:
        now = self._clock()
        waits = (running.deadline - now for running in self._running.values())
        return max(0.0, min(within, *waits, within))

    def _give_up_late_ones(self) -> None:
        now = self._clock()
        late = [asker for asker, running in self._running.items() if running.deadline <= now]
        for asker in late:
            reason = f"no answer within {self._timeout:g} s"
            check = self._running[asker].check
            self._answers.append(CheckResult(check, LocalOutcome.UNKNOWN, reason))
            self._give_up(asker)

    def _give_up(self, asker: threading.Thread) -> None:
        del self._running[asker]
        self._askers.remove(asker)
        self._hanging.add(asker)
