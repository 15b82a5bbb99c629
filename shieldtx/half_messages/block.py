"""The block around one local transaction, whose half messages end as the block does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import UUID

from shieldtx.domain.reasons import loggable
from shieldtx.domain.states import LocalOutcome
from shieldtx.errors import (
    ConfigurationError,
    IllegalTransition,
    TransactionRefused,
)
from shieldtx.half_messages.barrier_check import joint, outcomes
from shieldtx.half_messages.barrier_entry import BarrierEntry
from shieldtx.half_messages.messages import (
    EventFields,
    HalfMessages,
    contradictions,
    entries_into,
    session_of,
)
from shieldtx.half_messages.open_blocks import DecoratedCall, add_open, remove_open
from shieldtx.outbox.transaction import CallersTransaction
from shieldtx.ports.half_messages import Barrier

log = logging.getLogger(__name__)


class _Use(Enum):
    """A block is used once: each local transaction has messages of its own."""

    UNUSED = auto()
    OPEN = auto()
    ENDED = auto()


class HalfMessageBlock:
    """The block around one local transaction, with one half message or several.

    At its end the messages are committed. Barriers that were entered are asked before a commit or a
    rollback is passed on, and prevail. An exception that leaves it says nothing about the local
    transaction, which may have committed before: its end is UNKNOWN, and is found out by check-back
    unless the exception is one of `rollback_on`, or `commit` or `rollback` was called before.

    A block is opened once, and each try of a local transaction opens a block of its own. Outside of
    `with`, before and after, its methods raise TransactionRefused: nothing would come of them.
    """

    def __init__(
        self,
        messages: HalfMessages,
        event_type: str,
        payload: Any = None,
        *,
        rollback_on: tuple[type[BaseException], ...] = (),
        call: DecoratedCall | None = None,
        **fields: Unpack[EventFields],
    ) -> None:
        self._messages = messages
        self.call = call
        """None for a block that is no decorator's."""
        self._use = _Use.UNUSED
        self._prepare_first = partial(self._prepare, event_type, payload, **fields)
        self._rollback_on = rollback_on
        self._said: LocalOutcome | None = None
        self._barriers: dict[UUID, Barrier] = {}
        self._entries: list[BarrierEntry] = []
        self._guarded: set[UUID] = set()
        """The messages with which a local transaction was guarded, or that was tried."""
        self.ids: list[UUID] = []
        """Of the messages, in the order in which they will be in line."""

    @property
    def id(self) -> UUID:
        """Of the first message."""
        return self.ids[0]

    @property
    def has_ended(self) -> bool:
        """Whether the outcome of the messages is passed on, or will be in a moment."""
        return self._use is _Use.ENDED

    def prepare(self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]) -> UUID:
        """Prepare one more message of the same local transaction; all end together."""
        self._check_open("prepare")
        return self._prepare(event_type, payload, **fields)

    def _prepare(self, event_type: str, payload: Any, **fields: Unpack[EventFields]) -> UUID:
        event_id = self._messages.prepare(event_type, payload, **fields)
        self.ids.append(event_id)
        barrier = self._messages.barrier_of(event_type)
        if barrier is not None:
            self._barriers[event_id] = barrier
        return event_id

    def guard(self, transaction: CallersTransaction) -> None:
        """Let the barrier in the local transaction's own database tell how it ended.

        To be called in each local transaction, after the messages are prepared and before it does
        anything: then a check waits for its end. On an AsyncSession it takes place when that begins
        on its connection or, where it has, with the commit.
        Raises LateTransaction when a check has given a message up, TransactionRefused for a
        transaction that cannot hold a barrier and for a second one beside one that is still open,
        ConfigurationError where no barrier is declared.
        """
        self._check_open("guard")
        if not self._barriers:
            raise ConfigurationError(
                f"{self} has no barrier: declare `shield.barrier(...)` for its event type"
            )
        self.note_guard()
        caller = session_of(transaction)
        if any(entry.is_open and entry.caller is not caller for entry in self._entries):
            raise TransactionRefused(
                f"{self} guards another local transaction that is still open, and has one: end "
                "that first, or open a block for each"
            )
        entries = entries_into(self._barriers, transaction)
        self._entries += entries
        for entry in entries:
            entry.enter()

    def note_guard(self) -> None:
        """Note that a local transaction is to be guarded: the barrier alone tells how it ends.

        Before the guard can fail: one that could not enter has not committed.
        """
        self._guarded.update(self._barriers)

    def commit(self) -> None:
        """Say that the local transaction committed; the block's end passes it on."""
        self.say(LocalOutcome.COMMIT)

    def rollback(self) -> None:
        """Say that the local transaction rolled back; the block's end passes it on."""
        self.say(LocalOutcome.ROLLBACK)

    def unknown(self) -> None:
        """Say that the end of the local transaction is to be found out."""
        self.say(LocalOutcome.UNKNOWN)

    def say(self, outcome: LocalOutcome) -> None:
        """Say how the local transaction ended; the block's end passes it on."""
        self._check_open(str(outcome).lower())
        self._said = outcome

    def _check_open(self, call: str) -> None:
        """Refuse a call that would change nothing, or prepare a message that nothing ends."""
        if self._use is _Use.UNUSED:
            raise TransactionRefused(
                f"{call}() of a block that is not open: call it inside of `with shield.half(...)`"
            )
        if self._use is _Use.ENDED:
            raise TransactionRefused(
                f"the block of {self} has ended, and {call}() comes too late: call it inside of "
                "the block, or open a new block with shield.half(...)"
            )

    def _begin(self) -> None:
        """Refuse a second use: what the first one prepared, entered and said would count for it."""
        if self._use is not _Use.UNUSED:
            raise TransactionRefused(
                f"the block of {self} was opened before, and is for one local transaction: open "
                "a new block with shield.half(...) for each try"
            )
        self._use = _Use.OPEN

    def _close(self) -> None:
        self._use = _Use.ENDED
        remove_open(self)

    def __enter__(self) -> Self:
        self._begin()
        try:
            self._prepare_first()
        except BaseException:
            self._use = _Use.ENDED
            raise
        add_open(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        self._answer(error)

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            await asyncio.to_thread(self._prepare_first)
        except BaseException:
            self._use = _Use.ENDED
            raise
        add_open(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        await asyncio.to_thread(self._answer, error)

    def _answer(self, error: BaseException | None) -> None:
        """Pass on how the local transaction ended; a word that is lost is not an error of his."""
        outcome = self._outcome(error)
        asked = self._asked_about(outcome)
        told = self._confirmed(asked) if asked else dict.fromkeys(self.ids, outcome)
        if LocalOutcome.UNKNOWN in told.values():
            log.warning(
                "outcome is unknown, check-back resolves it",
                extra={"action": "outcome_unknown", "event_ids": list(map(str, self.ids))},
            )
        try:
            self._messages.end_each(told)
        except IllegalTransition as conflict:
            log.error(  # noqa: TRY400  it is raised
                "outcome rejected, message already resolved",
                extra={
                    "action": "outcome_rejected",
                    "event_ids": list(map(str, self.ids)),
                    "outcome": str(outcome),
                    "error": str(conflict),
                },
            )
            if error is None:
                raise
        except Exception as lost:
            log.warning(
                "outcome not recorded, check-back resolves it",
                exc_info=loggable(lost),
                extra={
                    "action": "outcome_not_recorded",
                    "event_ids": list(map(str, self.ids)),
                    "outcome": str(outcome),
                },
            )
        unguarded = [i for i in self._barriers if i not in self._guarded]
        problem = contradictions(told, said=outcome, unguarded=unguarded)
        if problem and error is None:
            raise TransactionRefused(problem)
        if problem:
            log.error(
                "barrier contradicts the outcome",
                extra={
                    "action": "barrier_contradiction",
                    "event_ids": list(map(str, self.ids)),
                    "reason": problem,
                },
            )

    def _asked_about(self, outcome: LocalOutcome) -> Mapping[UUID, Barrier]:
        """Return the barriers that are asked before the outcome is passed on.

        Those that were entered, or that it was tried to enter; where none was, a ROLLBACK asks all,
        and so shuts out what may still come.
        """
        if outcome is LocalOutcome.UNKNOWN:
            return {}
        if outcome is LocalOutcome.ROLLBACK and not self._guarded:
            return self._barriers
        return {i: barrier for i, barrier in self._barriers.items() if i in self._guarded}

    def _confirmed(self, asked: Mapping[UUID, Barrier]) -> dict[UUID, LocalOutcome]:
        """Return how each message ends, by the barriers.

        Those about which none is asked end as the local transaction that they share did.
        """
        if any(entry.is_open for entry in self._entries):
            # Its end would be waited for in vain: it comes after that of the block.
            return dict.fromkeys(self.ids, LocalOutcome.UNKNOWN)
        found = outcomes(asked)
        return dict.fromkeys(self.ids, joint(found)) | found

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
        return f"half message {', '.join(map(str, self.ids)) or '(not prepared)'}"
