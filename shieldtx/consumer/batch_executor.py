"""Batches: first attempts that share a transaction, for as long as none of them fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from shieldtx.consumer.event_processor import Inbox, Verdict, opened
from shieldtx.consumer.handlers import ConsumerGroup, Handler
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.reasons import reason_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import PayloadRefused
from shieldtx.ports.inbox import Attempt, InboxStore

log = logging.getLogger(__name__)

LONGEST = 1.0
"""Seconds that a batch's transaction is meant to take at most; it holds its rows' locks so long."""

FIRST = 8
"""How many events a worker's first transaction has, from which it learns how fast they are."""

SHARE_OF_LEASE = 0.25
"""The part of the shortest lease after which what is left of a batch gets turns of its own."""

_SHORTEST = 0.000_001
"""Seconds that a transaction has taken in any case."""

_Key = tuple[str, str | None]


def shares_batches(handler: Handler, envelope: Envelope) -> bool:
    """Whether the first attempt at an event may share a transaction with others."""
    return envelope.kind is TxKind.COMMIT and not handler.alone


class Batches:
    """Applies started attempts in the order of their arrival, many in one transaction.

    A failure costs nobody but the event at fault: the transaction is rolled back, the events before
    it are applied again, and it begins the next transaction, since what they left in theirs (a
    temporary table, a `SET LOCAL`) may be why. When it fails there too, it has failed its attempt,
    and those behind it go on, unless they are of its key: then they wait. What is no single event's
    fault (a deadlock, a COMMIT that fails, a lease that is lost) ends the batch: its starts are
    taken back, and each event gets a turn of its own.

    Should the process die, nobody can tell who killed it. Whoever takes the rows over goes on under
    the number that was counted, each alone: the neighbours lose nothing, and the event that kills
    gets one run more than its `max_attempts`.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        inbox: Inbox,
        is_time_up: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._store = store
        self._inbox = inbox
        self._is_time_up = is_time_up
        self._clock = clock
        self._pace = LONGEST / FIRST

    def work(self, attempts: Sequence[Attempt]) -> Counter[Verdict]:
        """Work attempts that one call of `receive` has started; returns how their turns ended.

        Errors of the database are raised; rows then stay as they are until their lease runs out.
        """
        if not attempts:
            return Counter()
        self._inbox.watch.forget()
        shortest = min(self._handler_of(attempt).lease for attempt in attempts).total_seconds()
        run = _Run(ends=self._clock() + shortest * SHARE_OF_LEASE)
        self._work(attempts, run)
        return run.verdicts

    def _work(self, attempts: Sequence[Attempt], run: _Run) -> None:
        # Those of a batch that was received in parts have a token for each part.
        runs = [_Task(attempts=list(part)) for _, part in groupby(attempts, attrgetter("token"))]
        agenda = runs[::-1]
        while agenda:
            task = agenda.pop()
            attempts = self._free(task.attempts, run)
            if not attempts:
                continue
            if task.error is not None:
                self._fail(attempts[0], task.error, run)
            elif self._is_time_up() or self._clock() >= run.ends:
                self._part(attempts, run)
            else:
                most = max(1, int(LONGEST / self._pace))
                agenda += [
                    _Task(attempts=attempts[most:]),
                    *reversed(self._apply_or_divide(attempts[:most], run)),
                ]

    def _free(self, attempts: Sequence[Attempt], run: _Run) -> Sequence[Attempt]:
        """Leave out what has to wait because an event of its key does."""
        if not run.waiting:
            return attempts
        self._store.release([a for a in attempts if _key(a) in run.waiting])
        return [a for a in attempts if _key(a) not in run.waiting]

    def _apply_or_divide(self, part: Sequence[Attempt], run: _Run) -> list[_Task]:
        """Apply attempts in one transaction; return what is left to do when that fails, in order.

        A call that fails is at fault only where it was the first of its transaction. Of one for
        several events, halves are tried until the one at fault is alone.
        """
        try:
            self._apply(part, run)
        except _Culprit as culprit:
            first, end = culprit.first, culprit.end
            if first > 0:
                # Perhaps by what those before it left in the transaction: it begins the next one.
                return [_Task(attempts=part[:first]), _Task(attempts=part[first:])]
            behind = _Task(attempts=part[end:])
            if end == 1:
                return [_Task(attempts=part[:1], error=culprit.error), behind]
            middle = end // 2
            return [_Task(attempts=part[:middle]), _Task(attempts=part[middle:end]), behind]
        except _Interruption as interruption:
            self._inbox.note_end(part[interruption.first : interruption.end], interruption.error)
            raise interruption.error from None
        except Exception as error:  # noqa: BLE001  what is no single event's fault
            log.warning(
                "group %s works %d events one by one: %s",
                self._group.name,
                len(part),
                reason_of(error),
            )
            self._part(part, run)
        else:
            run.verdicts[Verdict.APPLIED] += len(part)
            self._inbox.watch.end(part, Verdict.APPLIED.name)
        return []

    def _apply(self, part: Sequence[Attempt], run: _Run) -> None:
        """Apply attempts in one transaction, or raise what kept them from it."""
        began = self._clock()
        watch = self._inbox.watch if self._inbox.watch.is_on else None
        with self._store.effects(part) as session:
            for first, end, handler in self._calls(part):
                if self._clock() >= run.ends:
                    raise TimeoutError("they have taken too much of their leases")
                if watch is not None:
                    watch.begin(part[first:end])
                self._call(session, handler, part, first, end)
        self._pace = max(self._clock() - began, _SHORTEST) / len(part)

    def _call(
        self, session: Session, handler: Handler, part: Sequence[Attempt], first: int, end: int
    ) -> None:
        try:
            if handler.takes_list:
                events = _opened(handler, part, first, end)
                self._inbox.call_with_list(session, handler, events)
            else:
                self._inbox.call(session, handler, part[first].envelope)
        except (_Culprit, OperationalError):
            # A deadlock or a lost connection is nobody's own fault.
            raise
        except Exception as error:
            raise _Culprit(first, end, error) from error
        except BaseException as error:
            raise _Interruption(first, end, error) from error

    def _calls(self, part: Sequence[Attempt]) -> Iterator[tuple[int, int, Handler]]:
        """Yield from where to where each call of a handler goes: lists as long as they can be."""
        first = 0
        while first < len(part):
            handler, end = self._handler_of(part[first]), first + 1
            if handler.takes_list:
                while end < len(part) and part[end].envelope.type == part[first].envelope.type:
                    end += 1
            yield first, end, handler
            first = end

    def _fail(self, attempt: Attempt, error: Exception, run: _Run) -> None:
        self._note(attempt, self._inbox.fail(attempt, self._handler_of(attempt), error), run)

    def _part(self, attempts: Sequence[Attempt], run: _Run) -> None:
        """Give each of them a turn of its own, now or, when time is up, some other time."""
        self._store.release(attempts)
        for attempt in attempts:
            if self._is_time_up():
                return
            self._note(attempt, self._inbox.work(attempt.envelope), run)

    def _note(self, attempt: Attempt, verdict: Verdict, run: _Run) -> None:
        run.verdicts[verdict] += 1
        if verdict not in _SETTLED and attempt.envelope.key is not None:
            run.waiting.add(_key(attempt))

    def _handler_of(self, attempt: Attempt) -> Handler:
        handler = self._group.handler_of(attempt.envelope.type, attempt.envelope.kind)
        if handler is None:
            raise LookupError(f"no handler for {attempt.envelope.type!r}, which was just received")
        return handler


@dataclass(kw_only=True, slots=True)
class _Run:
    """How the work on the attempts of one `receive` goes."""

    ends: float
    """When the batch has taken its share of the shortest lease."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    waiting: set[_Key] = field(default_factory=set)
    """Keys whose later events have to wait for one of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """Attempts that are to be applied together; with an error, the one that has failed with it."""

    attempts: Sequence[Attempt]
    error: Exception | None = None


class _Culprit(Exception):
    """The call for a part of a batch, from `first` up to `end`, has failed."""

    def __init__(self, first: int, end: int, error: Exception) -> None:
        super().__init__(str(error))
        self.first = first
        self.end = end
        self.error = error


class _Interruption(BaseException):
    """The call for a part of a batch, from `first` up to `end`, ends the process."""

    def __init__(self, first: int, end: int, error: BaseException) -> None:
        super().__init__(repr(error))
        self.first = first
        self.end = end
        self.error = error


_SETTLED = {Verdict.APPLIED, Verdict.REFUSED}


def _opened(handler: Handler, part: Sequence[Attempt], first: int, end: int) -> list[Event]:
    events = []
    for n in range(first, end):
        try:
            events.append(opened(handler, part[n].envelope))
        except PayloadRefused as refused:
            raise _Culprit(n, n + 1, refused) from refused
    return events


def _key(attempt: Attempt) -> _Key:
    return attempt.envelope.topic, attempt.envelope.key
