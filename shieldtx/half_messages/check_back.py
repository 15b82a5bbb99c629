"""Check-back: queries unknown outcomes of local transactions; one pass is `run_once`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.log_fields import event_fields
from shieldtx.domain.reasons import loggable, reason_of
from shieldtx.domain.states import LocalOutcome
from shieldtx.half_messages.check_run import CheckRun
from shieldtx.ports.half_messages import CheckResult, DueCheck, HalfMessageStore

log = logging.getLogger(__name__)

_WRITTEN_WITHIN_S = 1.0
"""Maximum seconds that a result waits for others of its batch, to be recorded together."""

_ALLOWED = f"not a LocalOutcome: {', '.join(LocalOutcome)}"

Checker: TypeAlias = Callable[[Envelope], LocalOutcome]
"""Returns the outcome of a half message's local transaction; an exception means UNKNOWN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckBackResult:
    """The result of one pass, in half messages."""

    checked: int = 0
    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    late: int = 0
    """Results that did not count: a commit or rollback call, or the next check, came first."""
    more: bool = False
    """Other messages may be due already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkingResult:
    """The result of one pass, in half messages."""

    parked: int
    more: bool
    """Other messages may have to be parked too."""


class CheckBack:
    """Calls the checker of one event type, for a batch in each pass.

    The counts of a batch's checks are committed before the checker runs: a message that kills its
    process uses up its own checks. The other messages of its batch lose at most one check, because
    checks without a result are repeated one by one. Each check has a deadline. This process does
    not use a thread whose checker hangs until the checker returns, and only its own event type
    waits.
    """

    def __init__(
        self,
        *,
        event_type: str,
        store: HalfMessageStore,
        checker: Checker,
        timeout: timedelta,
        budget: timedelta,
        threads: int = 1,
        batch_size: int = 200,
        after_commit: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check with a `timeout` for each check, and start none after the `budget` of a pass.

        Both together are not longer than the shortest time between two checks of a message: then a
        batch ends before any of its messages is due again. `threads` is the number of concurrent
        checks.
        """
        self.event_type = event_type
        self._store = store
        self._checker = checker
        self._timeout = timeout.total_seconds()
        self._budget = budget.total_seconds()
        self._threads = threads
        self._batch_size = batch_size
        self._after_commit = after_commit
        self._stopping = stopping
        self._clock = clock
        self._hanging: list[CheckRun] = []

    def run_once(self) -> CheckBackResult:
        """Make the due checks, up to the size of a batch; errors of the database are raised."""
        threads = self._free_threads()
        if not threads:
            return CheckBackResult()
        ends = self._clock() + self._budget
        claim = self._store.claim_checks(self.event_type, limit=self._batch_size)
        run = CheckRun(
            claim.checks,
            self._check,
            may_begin=lambda: not self._stopping() and self._clock() < ends,
            timeout=self._timeout,
            clock=self._clock,
        )
        counts: Counter[LocalOutcome | None] = Counter()
        try:
            run.begin(threads=threads, name=f"shieldtx-check-{self.event_type}")
            for answers in run.answers(within=_WRITTEN_WITHIN_S):
                counts.update(self._record(claim.token, answers))
        finally:
            unmade = run.end()
            self._hanging.append(run)
        self._store.release(claim.token, unmade)
        return CheckBackResult(
            checked=len(claim.checks) - len(unmade),
            committed=counts[LocalOutcome.COMMIT],
            rolled_back=counts[LocalOutcome.ROLLBACK],
            unknown=counts[LocalOutcome.UNKNOWN],
            late=counts[None],
            more=claim.more and self._free_threads() > 0,
        )

    def _free_threads(self) -> int:
        """Return the number of free threads: threads of hanging checks are not free."""
        self._hanging = [run for run in self._hanging if run.hanging]
        return max(0, self._threads - sum(run.hanging for run in self._hanging))

    def _record(self, token: UUID, answers: Sequence[CheckResult]) -> list[LocalOutcome | None]:
        """Return the outcomes, and None for a result that does not count any more."""
        if not answers:
            return []
        for check, outcome, reason in answers:
            if outcome is LocalOutcome.UNKNOWN:
                log.warning(
                    "check found no outcome",
                    extra={
                        "action": "check_inconclusive",
                        **event_fields(check.envelope),
                        "attempt": check.number,
                        "reason": reason,
                    },
                )
        counting = self._store.answer(token, answers)
        outcomes = [a.outcome if a.check.envelope.id in counting else None for a in answers]
        if LocalOutcome.COMMIT in outcomes:
            self._after_commit()
        return outcomes

    def _check(self, check: DueCheck) -> CheckResult:
        try:
            outcome = self._checker(check.envelope)
        except BaseException as error:
            log.debug(
                "checker raised an error",
                exc_info=loggable(error),
                extra={"action": "checker_raised", **event_fields(check.envelope)},
            )
            return CheckResult(check, LocalOutcome.UNKNOWN, reason_of(error))
        if not isinstance(outcome, LocalOutcome):
            # Only the type: the value may be a row, and this text is logged and stored.
            reason = f"the checker returned a value of type {type(outcome).__name__}, {_ALLOWED}"
            return CheckResult(check, LocalOutcome.UNKNOWN, reason)
        return CheckResult(check, outcome, f"the checker returned {outcome}")


class Parking:
    """Leaves half messages to an operator when their checks, or their time, are used up."""

    def __init__(self, *, store: HalfMessageStore, batch_size: int = 100) -> None:
        self._store = store
        self._batch_size = batch_size

    def run_once(self) -> ParkingResult:
        """Park up to a batch, of any event type, and log an error for each."""
        parked = self._store.park(limit=self._batch_size)
        for envelope in parked:
            log.error(
                "half message needs an operator",
                extra={
                    "action": "half_message_unresolved",
                    **event_fields(envelope),
                    "advice": f"Decide whether its local transaction has committed: "
                    f"`shieldtx half show {envelope.id}`",
                },
            )
        return ParkingResult(parked=len(parked), more=len(parked) == self._batch_size)
