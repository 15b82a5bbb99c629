"""The breaker: pauses a handler whose failures look like a defect, before events are given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Final

from shieldtx.consumer.breaker_log import BreakerLog, Failing
from shieldtx.consumer.failure_runs import FailureRuns, defect_of
from shieldtx.consumer.failures import concerns_no_event
from shieldtx.consumer.own_pauses import OwnPauses
from shieldtx.consumer.probe_answers import ProbeAnswer, ProbeAnswers
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Attempt, Handled, IncomingEvent
from shieldtx.ports.pauses import (
    HandlerKey,
    Pause,
    PauseStore,
    ProbeClaim,
    handler_key_of,
    is_covered,
)

LENGTH: Final = 5
"""The number of different events whose failures pause a handler."""

FIRST_PROBE: Final = timedelta(seconds=5)
"""The wait before the first probe of a paused handler; it doubles with each failed probe."""

LONGEST_WAIT: Final = timedelta(minutes=5)
"""The maximum wait between two probes."""

_MOST_DOUBLINGS: Final = 20
"""More doublings would change no wait, and overflow a long one."""

READ_EVERY: Final = 1.0
"""Seconds between two reads of the pauses, when no failure needs one sooner."""


class Breaker:
    """The paused handlers of one group, as one worker knows them. Safe for any number of threads.

    All lanes of a worker share it. It pauses a handler when the attempts at `length` different
    events have failed with the same error, raised at the same line, and no event has succeeded
    between; after each pause it needs a longer run (`FailureRuns`). While a handler is paused, none
    of its attempts is started, and a failure of an attempt that was started before does not count.

    Each worker counts the failures that it has met: of N workers, each may count `length` - 1
    failures before the first of them pauses the handler for all. Where other workers have succeeded
    since the run began, a worker pauses the handler for itself alone (`OwnPauses`).
    """

    def __init__(
        self,
        *,
        group: str,
        pauses: PauseStore | None = None,
        length: int = LENGTH,
        first_probe: timedelta = FIRST_PROBE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Share pauses with other workers by `pauses`; None: pause nothing.

        With a `length` of 0 only operators pause handlers.
        """
        self._group = group
        self._store = pauses
        self._first_probe = first_probe
        self._clock = clock
        self._runs = FailureRuns(length=length, clock=clock)
        self._own = OwnPauses(wait_after=self._wait_after, clock=clock)
        self._log = BreakerLog(group, clock=clock)
        self._pauses: Sequence[Pause] = ()
        self._next_read = clock()
        self._reads = 0
        self._trips = 0
        self._known = 0
        """The number of the read whose result is known: an earlier one may end later."""
        self._probed = ProbeAnswers()
        self._stands_back: dict[HandlerKey, float | None] = {}
        """Handlers whose probe has failed here, and until when another worker may claim the next
        one first: known once that one is due."""

    # --- what is paused ---------------------------------------------------------------------------

    @property
    def has_pauses(self) -> bool:
        """Whether any handler of the group is paused."""
        return bool(self._current())

    def is_paused(self, handler: HandlerKey) -> bool:
        """Whether no attempt at events of this type and kind may be started."""
        return is_covered(self._current(), handler)

    def running(self, handled: Handled) -> Handled:
        """Return the types and kinds that are not paused."""
        pauses = self._current()
        if not pauses:
            return handled
        return {handler for handler in handled if not is_covered(pauses, handler)}

    def without_starts(self, arrivals: Sequence[IncomingEvent]) -> Sequence[IncomingEvent]:
        """Return arrivals of which those with a paused handler are stored without an attempt."""
        pauses = self._current()
        if not pauses:
            return arrivals
        return [
            each._replace(lease=None) if is_covered(pauses, handler_key_of(each.envelope)) else each
            for each in arrivals
        ]

    def _current(self, *, fresh: bool = False) -> Sequence[Pause]:
        """Return the pauses of the group and those of this worker."""
        shared, own = self._shared(fresh=fresh), self._own.pauses()
        for pause in own:
            self._log.paused(pause)
        return [*shared, *own] if own else shared

    def _shared(self, *, fresh: bool) -> Sequence[Pause]:
        """Return the pauses of the group, read at intervals, or now."""
        if self._store is not None and (fresh or self._clock() >= self._next_read):
            # Without a lock: lanes of coroutines share a thread, where a lock would wait for ever.
            began = self._clock()
            self._reads += 1
            number = self._reads
            found = self._store.pauses(self._group)
            # Only now: after a read that fails, the pauses are not known.
            self._next_read = began + READ_EVERY
            if number > self._known:
                self._known, before, self._pauses = number, self._pauses, found
                self._note_changes(before, found)
            if fresh:
                # A later read of another lane may have begun before a pause that this lane knows.
                return found
        return self._pauses

    def _note_changes(self, before: Sequence[Pause], now: Sequence[Pause]) -> None:
        left = {(pause.event_type, pause.kind) for pause in now}
        for pause in before:
            if (pause.event_type, pause.kind) not in left:
                # A run from the time before the pause would end the next attempts too soon.
                self._runs.end_of(pause)
                for handler in [key for key in self._stands_back if pause.covers(key)]:
                    self._stands_back.pop(handler, None)
                self._log.resumed(pause)
        for pause in now:
            self._log.paused(pause)

    # --- outcomes of attempts ---------------------------------------------------------------------

    def succeeded(self, attempts: Iterable[Attempt]) -> None:
        """Record that the handlers of these attempts have done their work."""
        for attempt in attempts:
            self._runs.end(handler_key_of(attempt.envelope))
            self.declared(attempt)

    def declared(self, attempt: Attempt) -> None:
        """Record an error that the retry policy declares: the handler works, its run stays."""
        for ended in self._own.end([handler_key_of(attempt.envelope)]):
            self._log.resumed(ended)
        self._probed.works(attempt.envelope)

    def takes_back(
        self, attempt: Attempt, error: Exception, *, raise_site: str, reason: str
    ) -> bool:
        """Record an unexpected failure; return whether its attempt must not count.

        That is so while the handler is paused, and the failure that completes a run pauses it. The
        pauses are read first: another worker may have paused the handler during the attempt.
        """
        if self._store is None:
            return False
        handler, event = (
            handler_key_of(attempt.envelope),
            (attempt.envelope.id, attempt.envelope.source),
        )
        is_of_event = not concerns_no_event(error)
        if is_of_event:
            self._probed.fails(attempt.envelope, reason)
        trips = self._trips
        if is_covered(self._current(fresh=True), handler):
            return True
        if not is_of_event:
            return False
        on_trial_since = self._own.on_trial_since(handler)
        is_complete = self._runs.failed(handler, defect_of(error, raise_site), event)
        if not is_complete and on_trial_since is None:
            # Another lane may have paused the handler since the read, and ended the run.
            return self._trips != trips
        began = self._runs.began(handler) if on_trial_since is None else on_trial_since
        fails = Failing(handler=handler, error=error, reason=reason, raise_site=raise_site)
        self._pause(self._store, fails, within=timedelta(seconds=self._clock() - began))
        return True

    def _pause(self, store: PauseStore, fails: Failing, *, within: timedelta) -> None:
        """Pause a handler: for all, or in this worker if it works elsewhere within that time."""
        handler = fails.handler
        if store.has_succeeded(self._group, handler, within=within):
            self._own.pause(handler, reason=fails.reason)
            self._end_run(handler)
            self._log.fails_here_alone(fails)
            return
        if store.trip(self._group, handler, reason=fails.reason, first_probe=self._first_probe):
            self._log.tripped(fails, waiting=self._waiting(handler))
        self._end_run(handler)
        self._own.end([handler])
        # The pause is committed: no later error may make the failure count.
        with suppress(Exception):
            self._current(fresh=True)

    def _end_run(self, handler: HandlerKey) -> None:
        self._trips += 1
        self._runs.end(handler)

    def _waiting(self, handler: HandlerKey) -> int | None:
        """Count the events of a handler; None if the database does not answer: the alarm comes."""
        store = self._store
        with suppress(Exception):
            return store.waiting(self._group, handler) if store is not None else None
        return None

    # --- probes -----------------------------------------------------------------------------------

    def claim_probes(self, leases: Iterable[tuple[HandlerKey, timedelta]]) -> Iterator[ProbeClaim]:
        """Claim the due probes of these handlers, for as long as an attempt of each may take.

        A pause by an operator has no probes, nor has a handler that an operator has paused too.
        """
        pauses = self._current()
        if self._store is None or not any(pause.is_probe_due for pause in pauses):
            return
        for handler, lease in leases:
            covering = [pause for pause in pauses if pause.covers(handler)]
            is_due = covering and all(pause.is_probe_due for pause in covering)
            if is_due and not self._leaves_to_others(handler):
                # A probe that kills its process is not settled: the workers must not die in turn.
                timeout = lease + self._wait_after(max(pause.probes for pause in covering))
                claim = self._store.claim_probe(self._group, handler, timeout=timeout)
                if claim is not None:
                    self._stands_back.pop(handler, None)
                    yield claim

    def _leaves_to_others(self, handler: HandlerKey) -> bool:
        """Whether another worker may claim a due probe first: the last one has failed here.

        The cause may be this worker. The others read the pauses within the same time.
        """
        if handler not in self._stands_back:
            return False
        now, until = self._clock(), self._stands_back[handler]
        if until is None:
            wait = min(READ_EVERY, self._first_probe.total_seconds())
            until = self._stands_back[handler] = now + wait
        return now < until

    def probing(self, envelope: Envelope) -> AbstractContextManager[ProbeAnswer]:
        """Return the answer of a probe, which the attempt at this event gives during the block."""
        return self._probed.opened(envelope)

    def close(self, claim: ProbeClaim) -> None:
        """End the pause of a handler whose probe has succeeded."""
        if self._store is not None:
            self._store.close(claim)
            self._current(fresh=True)

    def keep_paused(self, claim: ProbeClaim, *, reason: str | None) -> None:
        """Plan the next probe: after a failure later each time, else soon."""
        if self._store is not None:
            delay = self._first_probe if reason is None else self._wait_after(claim.number)
            self._store.settle_probe(claim, delay=delay, reason=reason)
            if reason is not None:
                self._stands_back[claim.handler] = None
            self._current(fresh=True)

    def _wait_after(self, probes: int) -> timedelta:
        """Return the wait after so many probes."""
        longest = max(LONGEST_WAIT, self._first_probe)
        wait: timedelta = self._first_probe * 2 ** min(probes, _MOST_DOUBLINGS)
        return min(wait, longest)
