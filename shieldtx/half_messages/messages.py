"""Half messages: prepared before a local transaction, and sent or discarded by its outcome.

For local transactions outside of the outbox's own database; inside of it, `outbox.add` is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import time as unix_time
from typing import Any, TypedDict, Unpack
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import shieldtx.half_messages.barrier_events  # noqa: F401  notifies the entries of commits
from shieldtx.domain.events import NO_HEADERS, Envelope, Event, age_of
from shieldtx.domain.schedule import due
from shieldtx.domain.states import LocalOutcome, Operation, OutboxStatus
from shieldtx.errors import (
    EventRefused,
    IllegalTransition,
    TransactionRefused,
)
from shieldtx.half_messages.barrier_check import outcomes
from shieldtx.half_messages.barrier_entry import BarrierEntry
from shieldtx.half_messages.handled_event import handled_around
from shieldtx.outbox.causation import Handled
from shieldtx.outbox.transaction import CallersTransaction, caller_of
from shieldtx.ports.half_messages import Barrier, HalfMessageStore, NewHalfMessage

_ENDS = {
    LocalOutcome.COMMIT: {
        OutboxStatus.INIT,
        OutboxStatus.PROCESSING,
        OutboxStatus.PROCESSED,
        OutboxStatus.FAILED,
    },
    LocalOutcome.ROLLBACK: {OutboxStatus.DISCARDED},
}
"""The statuses of a message that had this outcome before."""

_TO_END = {
    LocalOutcome.COMMIT: ("committed", "commit"),
    LocalOutcome.ROLLBACK: ("rolled back", "roll back"),
}

OPPOSITES = {
    LocalOutcome.COMMIT: LocalOutcome.ROLLBACK,
    LocalOutcome.ROLLBACK: LocalOutcome.COMMIT,
}


class EventFields(TypedDict, total=False):
    """The fields of a half message, in addition to its type and its payload."""

    key: str | None
    """The key keeps the order of the commits."""
    biz_key: str | None
    operation: Operation
    headers: Mapping[str, str]
    delay: timedelta | None
    """Time from the commit to the due time."""
    at: datetime | None
    """The due time, as an aware datetime: then or with the commit, whichever is later."""
    immunity: timedelta | None
    """Time until the first check; None: as configured."""
    causation_id: UUID | None
    """The id of the causing event. None in a handler: the handled event; in a handler of lists,
    there is no cause."""
    causation_source: str | None
    """The service of that event; a handler may omit it for events that it handles."""


class HalfMessages:
    """Prepares half messages, and records the outcomes that their application reports.

    Each call is a transaction of its own in the outbox's database. If a commit or rollback call is
    lost, check-back resolves the message later, see check_back.py.
    """

    def __init__(
        self,
        *,
        store: HalfMessageStore,
        barrier_of: Callable[[str], Barrier | None],
        to_envelope: Callable[[Event, Handled | None], Envelope],
        after_commit: Callable[[], None],
        barrier_retention: timedelta = timedelta.max,
    ) -> None:
        """Use barriers whose rows are kept for `barrier_retention`."""
        self._barrier_retention = barrier_retention
        self._store = store
        self.barrier_of = barrier_of
        """By event type; None where a checker returns the outcome of its local transactions."""
        self._to_envelope = to_envelope
        self._after_commit = after_commit

    def prepare(self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]) -> UUID:
        """Store a half message and return its id; inside of a handler, its event is the cause.

        Raises EventRefused, which names the field, UnknownEventType, and errors of the database:
        after an error, do not run the local transaction.
        """
        when, immunity = due(fields.get("delay"), fields.get("at")), fields.get("immunity")
        if immunity is not None and immunity < timedelta(0):
            raise EventRefused("immunity", f"{immunity} is in the past")
        event = Event(
            type=event_type,
            payload=payload,
            key=fields.get("key"),
            biz_key=fields.get("biz_key"),
            operation=fields.get("operation", Operation.INSERT),
            headers=fields.get("headers", NO_HEADERS),
            causation_id=fields.get("causation_id"),
            causation_source=fields.get("causation_source"),
        )
        message = NewHalfMessage(
            envelope=self._to_envelope(event, handled_around()),
            delay=when.delay,
            at=when.at,
            immunity=immunity,
        )
        self._store.prepare([message])
        return event.id

    def end(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> None:
        """Commit or roll back half messages: all in one transaction, in this order.

        A repeated call is not an error. Raises IllegalTransition, after ending the others, for
        messages that had the other outcome before, that wait for an operator, or that do not exist.
        """
        before = self._store.resolve(event_ids, outcome)
        if outcome is LocalOutcome.COMMIT and OutboxStatus.HALF in before.values():
            self._after_commit()
        problems = {
            event_id: problem
            for event_id in event_ids
            if (problem := _problem(event_id, before.get(event_id), outcome))
        }
        if problems:
            raise IllegalTransition("; ".join(problems.values()), event_ids=tuple(problems))

    def commit(self, event_ids: Sequence[UUID]) -> None:
        """Commit half messages as `end` does; where a barrier is declared, only if it agrees.

        Raises TransactionRefused, after ending the others, where the local transaction has not
        committed: a message is discarded if it rolled back, or never entered its barrier. Also
        raises TransactionRefused for a message whose barrier row may be purged; an operator decides
        about that message.
        """
        self._end_confirmed(event_ids, LocalOutcome.COMMIT)

    def rollback(self, event_ids: Sequence[UUID]) -> None:
        """Roll half messages back as `end` does; where a barrier is declared, only if it agrees.

        A local transaction that has not entered can no longer commit. Raises TransactionRefused,
        after ending the others, where the transaction has committed, and the message is sent, or is
        in flight.
        """
        self._end_confirmed(event_ids, LocalOutcome.ROLLBACK)

    def _end_confirmed(self, event_ids: Sequence[UUID], reported: LocalOutcome) -> None:
        barriers = self._barriers_of(event_ids)
        forgotten = {i for i, barrier in barriers.items() if self._is_forgotten(i, barrier)}
        found = outcomes({i: barriers[i] for i in barriers if i not in forgotten})
        ended = dict.fromkeys(event_ids, reported) | found
        self.end_each({i: its for i, its in ended.items() if i not in forgotten})
        differing = {i: its for i, its in found.items() if its is not reported}
        problems = [
            contradiction(i, reported=reported, found=its) for i, its in differing.items()
        ] + [_forgotten(event_id, self._barrier_retention) for event_id in sorted(forgotten)]
        if problems:
            raise TransactionRefused("; ".join(problems))

    def _is_forgotten(self, event_id: UUID, barrier: Barrier) -> bool:
        """Whether a row of the local transaction may have been purged from the barrier.

        A query of the barrier would then treat a committed local transaction as rolled back.
        """
        age = age_of(event_id, unix_time())
        is_old = age is not None and age >= self._barrier_retention
        return is_old and barrier.visible_outcome(event_id) is LocalOutcome.UNKNOWN

    def end_each(self, outcomes_by_id: Mapping[UUID, LocalOutcome]) -> None:
        """End each message by its outcome; messages with UNKNOWN are left to their checks."""
        for outcome in (LocalOutcome.COMMIT, LocalOutcome.ROLLBACK):
            ids = [event_id for event_id, its in outcomes_by_id.items() if its is outcome]
            if ids:
                self.end(ids, outcome)

    def _barriers_of(self, event_ids: Sequence[UUID]) -> dict[UUID, Barrier]:
        """Return the barriers of the messages that are still HALF and have a barrier."""
        return {
            event_id: barrier
            for event_id, event_type in self._store.half_types(event_ids).items()
            if (barrier := self.barrier_of(event_type)) is not None
        }

    def guard(self, transaction: CallersTransaction, event_ids: Sequence[UUID]) -> None:
        """Guard the transaction with half messages that were prepared by `prepare`.

        The caller also commits them. Raises TransactionRefused for messages that are not HALF or
        have no barrier; otherwise as `HalfMessageBlock.guard` does.
        """
        barriers = self._barriers_of(event_ids)
        missing = [str(each) for each in event_ids if each not in barriers]
        if missing:
            raise TransactionRefused(
                f"half message {', '.join(missing)} has ended, is not there or has no barrier: "
                "prepare it first, and declare `shield.barrier(...)` for its event type"
            )
        for entry in entries_into(barriers, transaction):
            entry.enter()


def entries_into(
    barriers: Mapping[UUID, Barrier], transaction: CallersTransaction
) -> list[BarrierEntry]:
    """Return the entries into the barriers of half messages, one statement for each database."""
    caller = session_of(transaction)
    with_commit = isinstance(caller_of(transaction), AsyncSession)
    return [
        BarrierEntry(
            caller,
            barrier,
            [event_id for event_id, its in barriers.items() if its is barrier],
            with_commit=with_commit,
        )
        for barrier in dict.fromkeys(barriers.values())
    ]


def session_of(transaction: CallersTransaction) -> Session | Connection:
    """Return the synchronous session of an AsyncSession, or the caller's own object."""
    caller = caller_of(transaction)
    return caller.sync_session if isinstance(caller, AsyncSession) else caller


def contradiction(event_id: UUID, *, reported: LocalOutcome, found: LocalOutcome) -> str:
    """Describe how the barrier contradicts a COMMIT or a ROLLBACK."""
    if found is LocalOutcome.UNKNOWN:
        ended, first = _TO_END[reported]
        return (
            f"the local transaction of half message {event_id} is not known to have {ended}: "
            f"{first} it first; a check finds its end"
        )
    if found is LocalOutcome.COMMIT:
        return (
            f"by its barrier, the local transaction of half message {event_id} committed, so that "
            "the message is sent: call ROLLBACK only before the commit, and let no error of "
            "`rollback_on` be raised after it"
        )
    return (
        f"by its barrier, the local transaction of half message {event_id} did not commit, so that "
        "the message is discarded. Either it rolled back: return that where it is meant, with "
        "tx.rollback() or by returning LocalOutcome.ROLLBACK. Or its commit() was not called. Or "
        "an error of the database was swallowed: let the error out, or try the statement in "
        "session.begin_nested(). Or it was not guarded: call guard(session) in each local "
        "transaction, before anything else, and let its errors out"
    )


def _forgotten(event_id: UUID, retention: timedelta) -> str:
    """Describe why neither outcome of a message is accepted."""
    return (
        f"half message {event_id} is older than {retention} (SHIELDTX_RETENTION_BARRIER), so that "
        "its barrier does not know any more how the local transaction ended: an operator decides, "
        f"see `shieldtx half show {event_id}`"
    )


def _problem(event_id: UUID, before: OutboxStatus | None, outcome: LocalOutcome) -> str | None:
    """Return why a message could not have this outcome; None where it has, now or before."""
    if before is None:
        return f"there is no half message {event_id}"
    if before is OutboxStatus.UNRESOLVED:
        return f"half message {event_id} waits for an operator: `shieldtx half show {event_id}`"
    if before is OutboxStatus.HALF or before in _ENDS[outcome]:
        return None
    return f"half message {event_id} cannot {outcome}: it is {before} by an earlier word or check"


def contradictions(
    found: Mapping[UUID, LocalOutcome], *, reported: LocalOutcome, unguarded: Sequence[UUID]
) -> tuple[Sequence[UUID], str]:
    """Return which barriers contradict an outcome or were not entered, and how; "": none."""
    wrong = [i for i, its in found.items() if its is OPPOSITES.get(reported)]
    if wrong:
        return wrong, "; ".join(contradiction(i, reported=reported, found=found[i]) for i in wrong)
    if reported is not LocalOutcome.COMMIT or not unguarded:
        return [], ""
    was = "" if found[unguarded[0]] is LocalOutcome.UNKNOWN else "committed "
    return unguarded, (
        f"half message {', '.join(map(str, unguarded))} {was}without its barrier, so that a "
        "check finds it rolled back: call guard(session) in the local transaction, after "
        "the messages are prepared and before anything else"
    )
