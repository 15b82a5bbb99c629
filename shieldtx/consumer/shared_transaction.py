"""One transaction for the attempts of a batch, in which a refused event costs a savepoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.orm import Session

from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.batch_calls import BatchCalls, FailedCall
from shieldtx.consumer.failure_rates import FailureRates
from shieldtx.consumer.refusal import Refusal
from shieldtx.outbox.causation import handling_is_undone
from shieldtx.ports.inbox import Attempt, InboxStore
from shieldtx.ports.savepoint import Savepoint

MOST_SAVEPOINTS: Final = 60
"""The maximum number of savepoints in a transaction.

PostgreSQL keeps 64 subtransactions of a session in shared memory. With more, every other session
looks up on disk whether the rows of this transaction are visible (`pg_subtrans`).
"""


@dataclass(kw_only=True, slots=True)
class Progress:
    """The part of the attempts that a transaction has finished, in their order."""

    attempts: Sequence[Attempt]
    limit: int
    """The position at which the transaction ends."""
    done: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    unwritten: list[Refusal] = field(default_factory=list)
    """Refusals whose ROLLBACK events are not in the outbox yet."""
    unwritten_keys: set[str] = field(default_factory=set)
    """The keys of their events."""
    stops: list[int] = field(default_factory=list)
    """The positions at which the next savepoints end after a failure, the nearest one last."""
    failed_at: int | None = None
    """The position of the latest call that has failed: it is repeated alone."""
    savepoints: int = 0
    undone: Savepoint | None = None
    """The savepoint to which the transaction was rolled back, if nothing was written since."""
    kept: Savepoint | None = None
    """The savepoint of the last part, if its effects are kept and it is not released yet."""
    savepoints_s: float = 0.0
    """Seconds that savepoints and their releases have taken."""
    leaves_state: str | None = None
    """The type of the last event, if its handler has left a state for the next one."""

    @property
    def applied(self) -> list[Attempt]:
        """The attempts whose effects are in the transaction."""
        refused = {id(refusal.attempt) for refusal in self.refusals}
        return [each for each in self.attempts[: self.done] if id(each) not in refused]


class SharedTransaction:
    """Applies attempts in one transaction, as many as possible. Used by one thread.

    Calls of handlers that have failed lately run in savepoints. If such a call refuses its event,
    everything since the savepoint is undone. The calls before it are repeated, and then the call in
    a savepoint of its own. If it refuses again, its event ends in this transaction: the status and
    the ROLLBACK event. The decision depends on nothing that is not committed with it.

    Another error of a call ends the transaction before it, and the call begins the next one.
    """

    def __init__(
        self,
        *,
        calls: BatchCalls,
        store: InboxStore,
        recorder: AttemptRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._calls = calls
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._rates = FailureRates()

    def apply(self, attempts: Sequence[Attempt], *, ends: float) -> Progress:
        """Apply and commit; raises FailedCall when the transaction is rolled back for a call.

        Raises TimeoutError when a call would begin after `ends`.
        """
        progress = Progress(attempts=attempts, limit=len(attempts))
        try:
            with self._store.effects(attempts) as session:
                while progress.done < progress.limit:
                    end, is_protected = self._next_part(progress)
                    # Some events are finished: the first one needs a single savepoint.
                    if is_protected and progress.savepoints == MOST_SAVEPOINTS:
                        break
                    if progress.done and self._clock() >= ends:
                        break
                    self._write_rollbacks(session, progress, before=attempts[progress.done : end])
                    if is_protected:
                        self._apply_protected(session, progress, end, ends)
                    else:
                        progress.undone = None
                        self._release(progress)
                        progress.done = self._apply_part(session, progress, end, ends)
                self._write_rollbacks(session, progress)
                self._release(progress)
                if progress.done < len(attempts):
                    self._store.settle_only(session, attempts[: progress.done])
        except FailedCall as failed:
            self._rates.failed(attempts[failed.first])
            raise
        if progress.savepoints:
            self._rates.savepoints_took(progress.savepoints_s, number=progress.savepoints)
        if progress.refusals:
            self._recorder.rollbacks_are_committed()
        return progress

    def _next_part(self, progress: Progress) -> tuple[int, bool]:
        """Return where the next part ends, and whether it needs a savepoint."""
        stops = progress.stops
        while stops and stops[-1] <= progress.done:
            stops.pop()
        if stops:
            return min(stops.pop(), progress.limit), True
        end, is_protected = self._rates.next_part(progress.attempts, progress.done)
        return min(end, progress.limit), is_protected

    def _apply_part(self, session: Session, progress: Progress, end: int, ends: float) -> int:
        """Make the calls up to a position; return where the part has ended."""
        began = self._clock()
        after = self._make_calls(session, progress, end, ends)
        applied = progress.attempts[progress.done : after]
        self._rates.succeeded(applied, took=self._clock() - began)
        return after

    def _make_calls(self, session: Session, progress: Progress, end: int, ends: float) -> int:
        attempts, is_recorded = progress.attempts, self._recorder.times_attempts
        for call in self._calls.needed(attempts, progress.done, end):
            if self._clock() >= ends:
                raise TimeoutError("they have taken too much of their leases")
            first, called, _ = call
            if is_recorded:
                self._recorder.begin(called)
            self._calls.make(call, session)
            after = first + len(called)
            if after < len(attempts) and self._store.ends_after(session, attempts, after):
                progress.leaves_state = called[0].envelope.type
                progress.limit = after
                return after
        return end

    def _apply_protected(self, session: Session, progress: Progress, end: int, ends: float) -> None:
        is_repeated = progress.done == progress.failed_at
        is_doubtful = is_repeated or self._rates.mostly_fails(progress.attempts[progress.done])
        savepoint = self._savepoint(session, progress, is_doubtful=is_doubtful)
        try:
            after = self._apply_part(session, progress, end, ends)
        except FailedCall as failed:
            if not savepoint.undo():
                raise
            progress.undone = savepoint
            handling_is_undone(session)
            if not self._goes_on_after(session, progress, failed):
                raise
        else:
            # The next part releases it, in one message with its own savepoint.
            progress.kept = savepoint
            progress.done = after

    def _savepoint(self, session: Session, progress: Progress, *, is_doubtful: bool) -> Savepoint:
        """Set a savepoint; the last one again, if the transaction was just rolled back to it."""
        undone, progress.undone = progress.undone, None
        if undone is not None:
            undone.set_again(is_doubtful=is_doubtful)
            return undone
        progress.savepoints += 1
        kept, progress.kept = progress.kept, None
        with self._measured(progress):
            if kept is None:
                return self._store.savepoint(session, is_doubtful=is_doubtful)
            kept.renew(is_doubtful=is_doubtful)
            return kept

    def _release(self, progress: Progress) -> None:
        """Release the savepoint of the last part."""
        kept, progress.kept = progress.kept, None
        if kept is not None:
            with self._measured(progress):
                kept.release()

    @contextmanager
    def _measured(self, progress: Progress) -> Iterator[None]:
        began = self._clock()
        yield
        progress.savepoints_s += self._clock() - began

    def _goes_on_after(self, session: Session, progress: Progress, failed: FailedCall) -> bool:
        """Decide how the transaction continues after a call that is undone with its savepoint.

        Returns False if the call has failed its attempt.
        """
        first, count = failed.first, failed.count
        progress.failed_at = first
        attempt = progress.attempts[first]
        handler = self._calls.handler_of(attempt)
        if not self._recorder.is_refused(attempt, handler, failed.error):
            # The attempt fails only as the first of a transaction.
            if first == 0:
                return False
            self._rates.failed(attempt)
            progress.limit = first
        elif first > progress.done:
            progress.stops += [first + count, first]
        elif count > 1:
            progress.stops += [first + count, first + count // 2]
        else:
            self._rates.failed(attempt)
            refusal = self._recorder.refusal_of(attempt, handler, failed.error)
            self._store.refuse(session, attempt, reason=refusal.reason)
            progress.refusals.append(refusal)
            progress.unwritten.append(refusal)
            if (key := attempt.envelope.key) is not None:
                progress.unwritten_keys.add(key)
            progress.done += 1
        return True

    def _write_rollbacks(
        self, session: Session, progress: Progress, *, before: Sequence[Attempt] | None = None
    ) -> None:
        """Write the ROLLBACK events of all refusals, together.

        Before further attempts, only if one has the key of a refused event: its handler may write
        events too, which must come later.
        """
        if not progress.unwritten:
            return
        later = None if before is None else (attempt.envelope.key for attempt in before)
        if later is not None and progress.unwritten_keys.isdisjoint(later):
            return
        progress.undone = None
        self._release(progress)
        self._recorder.write_rollbacks(session, progress.unwritten)
        progress.unwritten = []
        progress.unwritten_keys.clear()
