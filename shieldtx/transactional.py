"""Half messages: prepared before a local transaction, and sent or discarded as that one ends.

For local transactions that are not in the outbox's own database; where they are, an event that is
added to them needs none of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from shieldtx.delays import due
from shieldtx.entries import enter_at_commit, enter_now
from shieldtx.errors import (
    ConfigurationError,
    EventRefused,
    IllegalTransition,
    TransactionRefused,
)
from shieldtx.events import NO_HEADERS, Envelope, Event
from shieldtx.outbox import CallersTransaction, caller_of
from shieldtx.ports.half import Barrier, HalfStore, Preparation
from shieldtx.states import LocalOutcome, Operation, OutboxStatus

log = logging.getLogger(__name__)

_ENDS = {
    LocalOutcome.COMMIT: {
        OutboxStatus.INIT,
        OutboxStatus.PROCESSING,
        OutboxStatus.PROCESSED,
        OutboxStatus.FAILED,
    },
    LocalOutcome.ROLLBACK: {OutboxStatus.DISCARDED},
}
"""Where a message may be found that has ended so before."""


class Parts(TypedDict, total=False):
    """What a half message may be made of, besides its type and its payload."""

    key: str | None
    """It keeps order, by the commit."""
    biz_key: str | None
    operation: Operation
    headers: Mapping[str, str]
    delay: timedelta | None
    """When it is due: from the commit on."""
    at: datetime | None
    """When it is due, as an aware datetime: then or with the commit, whichever is later."""
    immunity: timedelta | None
    """How long it is not asked about; None: as configured."""


class HalfMessages:
    """Prepares half messages and ends them by the word of their application.

    Each call is a transaction of its own in the outbox's database. A word that is lost on its way
    is no harm: whoever declares that he can tell is asked, see checkback.py.
    """

    def __init__(
        self,
        *,
        store: HalfStore,
        barrier_of: Callable[[str], Barrier | None],
        seal: Callable[[Event], Envelope],
        after_commit: Callable[[], None],
    ) -> None:
        self._store = store
        self.barrier_of = barrier_of
        """By event type; None where another one tells the end of its local transactions."""
        self._seal = seal
        self._after_commit = after_commit

    def prepare(self, event_type: str, payload: Any = None, **parts: Unpack[Parts]) -> UUID:
        """Store a half message and return its id.

        Raises EventRefused naming the field, UnknownEventType, and what the database raises: then
        the local transaction is not to be run.
        """
        when, immunity = due(parts.get("delay"), parts.get("at")), parts.get("immunity")
        if immunity is not None and immunity < timedelta(0):
            raise EventRefused("immunity", f"{immunity} is in the past")
        event = Event(
            type=event_type,
            payload=payload,
            key=parts.get("key"),
            biz_key=parts.get("biz_key"),
            operation=parts.get("operation", Operation.INSERT),
            headers=parts.get("headers", NO_HEADERS),
        )
        message = Preparation(
            envelope=self._seal(event), delay=when.delay, at=when.at, immunity=immunity
        )
        self._store.prepare([message])
        return event.id

    def end(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> None:
        """Commit or roll back half messages: all in one transaction, in this order.

        Again is no error. Raises IllegalTransition, having ended the others, for those that ended
        otherwise before, that wait for a person, or that are not there.
        """
        before = self._store.resolve(event_ids, outcome)
        if outcome is LocalOutcome.COMMIT and OutboxStatus.HALF in before.values():
            self._after_commit()
        problems = [
            problem
            for event_id in event_ids
            if (problem := _problem(event_id, before.get(event_id), outcome))
        ]
        if problems:
            raise IllegalTransition("; ".join(problems))

    def guard(self, transaction: CallersTransaction) -> None:
        """Guard the transaction with every half message of the blocks around this call.

        Raises TransactionRefused where there is none.
        """
        blocks = _OPEN.get()
        if not blocks:
            raise TransactionRefused(
                "there is no half message around this call: guard a local transaction inside of "
                "`with shield.half(...)` or of a method with @shield.transactional"
            )
        for block in blocks:
            block.guard(transaction)


class Half:
    """The block around one local transaction, with one half message or several.

    At its end the messages are committed. An exception that leaves it says nothing about the local
    transaction, which may have committed before: its end is UNKNOWN, and is found out by check-back
    unless the exception is one of `rollback_on`, or `commit` or `rollback` was called before.
    """

    def __init__(
        self,
        messages: HalfMessages,
        event_type: str,
        payload: Any = None,
        *,
        rollback_on: tuple[type[BaseException], ...] = (),
        **parts: Unpack[Parts],
    ) -> None:
        self._messages = messages
        self._prepare_first = partial(self.prepare, event_type, payload, **parts)
        self._rollback_on = rollback_on
        self._said: LocalOutcome | None = None
        self._barriers: dict[UUID, Barrier] = {}
        self._is_guarded = False
        self.ids: list[UUID] = []
        """Of the messages, in the order in which they will be in line."""

    @property
    def id(self) -> UUID:
        """Of the first message."""
        return self.ids[0]

    def prepare(self, event_type: str, payload: Any = None, **parts: Unpack[Parts]) -> UUID:
        """Prepare one more message of the same local transaction; all end together."""
        event_id = self._messages.prepare(event_type, payload, **parts)
        self.ids.append(event_id)
        barrier = self._messages.barrier_of(event_type)
        if barrier is not None:
            self._barriers[event_id] = barrier
            self._is_guarded = False
        return event_id

    def guard(self, transaction: CallersTransaction) -> None:
        """Let the barrier in the local transaction's own database tell how it ended.

        To be called in each local transaction, after the messages are prepared and before it does
        anything: then a check waits for its end. On an AsyncSession it takes place with the commit.
        Raises LateTransaction when a check has given a message up, TransactionRefused for a
        transaction that cannot hold a barrier, ConfigurationError where none is declared.
        """
        if not self._barriers:
            raise ConfigurationError(
                f"{self} has no barrier: declare `shield.barrier(...)` for its event type"
            )
        caller = caller_of(transaction)
        for barrier in dict.fromkeys(self._barriers.values()):
            ids = [event_id for event_id, its in self._barriers.items() if its is barrier]
            if isinstance(caller, AsyncSession):
                enter_at_commit(caller.sync_session, barrier, ids)
            else:
                enter_now(caller, barrier, ids)
        self._is_guarded = True

    def commit(self) -> None:
        """Say that the local transaction committed; the block's end passes it on."""
        self._said = LocalOutcome.COMMIT

    def rollback(self) -> None:
        """Say that the local transaction rolled back; the block's end passes it on."""
        self._said = LocalOutcome.ROLLBACK

    def unknown(self) -> None:
        """Say that the end of the local transaction is to be found out."""
        self._said = LocalOutcome.UNKNOWN

    def say(self, outcome: LocalOutcome) -> None:
        """Say how the local transaction ended."""
        self._said = outcome

    def __enter__(self) -> Self:
        self._prepare_first()
        _open(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _close(self)
        self._answer(error)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._prepare_first)
        _open(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _close(self)
        await asyncio.to_thread(self._answer, error)

    def _answer(self, error: BaseException | None) -> None:
        """Pass on how the local transaction ended; a word that is lost is not an error of his."""
        outcome = self._outcome(error)
        if outcome is LocalOutcome.UNKNOWN:
            log.warning("the end of %s is unknown for now: it will be checked", self)
            return
        try:
            self._messages.end(self.ids, outcome)
        except IllegalTransition as conflict:
            log.error("%s said %s too late: %s", self, outcome, conflict)  # noqa: TRY400  it is raised
            if error is None:
                raise
        except Exception:
            log.warning(
                "the word %s of %s was lost: it will be checked", outcome, self, exc_info=True
            )
        needs_guard = self._barriers and not self._is_guarded
        if outcome is LocalOutcome.COMMIT and needs_guard and error is None:
            raise TransactionRefused(
                f"{self} committed without its barrier, so that a check would have found it rolled "
                "back: call guard(session) in the local transaction, before anything else"
            )

    def _outcome(self, error: BaseException | None) -> LocalOutcome:
        if self._said is not None:
            return self._said
        if error is None:
            return LocalOutcome.COMMIT
        return (
            LocalOutcome.ROLLBACK if isinstance(error, self._rollback_on) else LocalOutcome.UNKNOWN
        )

    def __str__(self) -> str:
        """Name the messages."""
        return f"half message {', '.join(map(str, self.ids))}"


_OPEN: ContextVar[tuple[Half, ...]] = ContextVar("shieldtx.halves", default=())


def _open(half: Half) -> None:
    _OPEN.set((*_OPEN.get(), half))


def _close(half: Half) -> None:
    _OPEN.set(tuple(other for other in _OPEN.get() if other is not half))


def _problem(event_id: UUID, before: OutboxStatus | None, outcome: LocalOutcome) -> str | None:
    """Say why a message could not be ended so; None where it was, now or before."""
    if before is None:
        return f"there is no half message {event_id}"
    if before is OutboxStatus.UNRESOLVED:
        return f"half message {event_id} waits for a person: `shieldtx half show {event_id}`"
    if before is OutboxStatus.HALF or before in _ENDS[outcome]:
        return None
    return f"half message {event_id} cannot {outcome}: it is {before} by an earlier word or check"
