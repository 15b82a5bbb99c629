"""Check-back: asks how local transactions ended whose word did not come; a pass is `run_once`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

from shieldtx.events import Envelope
from shieldtx.ports.half import DueCheck, HalfStore
from shieldtx.states import LocalOutcome

log = logging.getLogger(__name__)

Checker: TypeAlias = Callable[[Envelope], LocalOutcome]
"""Tells how the local transaction of a half message ended; what it raises means UNKNOWN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckPass:
    """What one pass did, in half messages."""

    checked: int = 0
    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    late: int = 0
    """Not to be made any more, or the answer did not count: the message was not HALF any more."""
    more: bool = False
    """Others may be due already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkingPass:
    """What one pass did, in half messages."""

    parked: int
    more: bool
    """Others may have to be parked too."""


class _Answer(NamedTuple):
    outcome: LocalOutcome
    reason: str = ""


class CheckBack:
    """Asks the checker of one event type, a batch a pass, one message after the other.

    The count of a check is committed before the checker runs: a message that kills its process uses
    its own checks up, and those of no other. Each check has a deadline; a checker that does not
    come back is not asked again by this process until it has, and nobody but its own event type
    waits for it.
    """

    def __init__(
        self,
        *,
        event_type: str,
        store: HalfStore,
        checker: Checker,
        timeout: timedelta,
        budget: timedelta,
        batch_size: int = 100,
        after_commit: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask with a `timeout` for each check, and start none when the `budget` of a pass is over.

        Both together are no longer than the shortest time between two checks of a message: then a
        batch ends before any of it is due again.
        """
        self.event_type = event_type
        self._store = store
        self._checker = checker
        self._timeout = timeout.total_seconds()
        self._budget = budget.total_seconds()
        self._batch_size = batch_size
        self._after_commit = after_commit
        self._stopping = stopping
        self._clock = clock
        self._hanging: threading.Thread | None = None

    def run_once(self) -> CheckPass:
        """Check what is due, up to the size of a batch; errors of the database are raised."""
        if self._is_held_up():
            return CheckPass()
        ends = self._clock() + self._budget
        checks = self._store.claim_checks(self.event_type, limit=self._batch_size)
        counts = dict.fromkeys(LocalOutcome, 0)
        late = done = 0
        for check in checks:
            if self._stopping() or self._is_held_up() or self._clock() >= ends:
                break
            done += 1
            if not self._store.start(check):
                late += 1
                continue
            answer = self._ask(check)
            if self._write_down(check, answer):
                counts[answer.outcome] += 1
            else:
                late += 1
        self._store.give_back(checks[done:])
        if counts[LocalOutcome.COMMIT]:
            self._after_commit()
        return CheckPass(
            checked=done,
            committed=counts[LocalOutcome.COMMIT],
            rolled_back=counts[LocalOutcome.ROLLBACK],
            unknown=counts[LocalOutcome.UNKNOWN],
            late=late,
            more=len(checks) == self._batch_size and not self._is_held_up(),
        )

    def _is_held_up(self) -> bool:
        """Whether a check has not come back after its deadline."""
        return self._hanging is not None and self._hanging.is_alive()

    def _write_down(self, check: DueCheck, answer: _Answer) -> bool:
        if answer.outcome is LocalOutcome.UNKNOWN:
            log.warning(
                "check %d of half message %s %s: %s",
                check.number,
                self.event_type,
                check.envelope.id,
                answer.reason,
            )
        return self._store.answer(check, answer.outcome, reason=answer.reason)

    def _ask(self, check: DueCheck) -> _Answer:
        """Call the checker in a thread of its own, which may hang without holding up the pass."""
        answers: SimpleQueue[_Answer] = SimpleQueue()
        asking = threading.Thread(
            target=lambda: answers.put(self._call(check.envelope)),
            name=f"shieldtx-check-{self.event_type}",
            daemon=True,
        )
        asking.start()
        try:
            return answers.get(timeout=self._timeout)
        except Empty:
            self._hanging = asking
            return _Answer(LocalOutcome.UNKNOWN, f"no answer within {self._timeout:g} s")

    def _call(self, envelope: Envelope) -> _Answer:
        try:
            outcome = self._checker(envelope)
        except BaseException as error:  # noqa: BLE001  whatever it is, nobody knows more than before
            return _Answer(LocalOutcome.UNKNOWN, f"{type(error).__name__}: {error}")
        if not isinstance(outcome, LocalOutcome):
            told = f"the checker returned {outcome!r}, which is no LocalOutcome"
            return _Answer(LocalOutcome.UNKNOWN, told)
        return _Answer(outcome, f"the checker said {outcome}")


class Parking:
    """Leaves half messages to a person whose checks, or whose time, are used up."""

    def __init__(self, *, store: HalfStore, batch_size: int = 100) -> None:
        self._store = store
        self._batch_size = batch_size

    def run_once(self) -> ParkingPass:
        """Park up to a batch, of any event type, and raise the alarm for each."""
        parked = self._store.park(limit=self._batch_size)
        for envelope in parked:
            log.error(
                "half message %s %s is UNRESOLVED: nobody could tell how its local transaction "
                "ended, a person decides: `shieldtx half show %s`",
                envelope.type,
                envelope.id,
                envelope.id,
            )
        return ParkingPass(parked=len(parked), more=len(parked) == self._batch_size)
