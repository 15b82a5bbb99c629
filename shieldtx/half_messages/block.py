"""The block around one local transaction, which decides the outcome of its half messages."""

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
from shieldtx.errors import ConfigurationError, IllegalTransition, TransactionRefused
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

    The end of the block commits the messages. Before a commit or a rollback, the block queries the
    entered barriers, and their outcome prevails. An exception that leaves the block does not show
    the outcome: the local transaction may have committed before. Then the outcome is UNKNOWN, and
    check-back finds it, unless the exception is one of `rollback_on`, or `commit` or `rollback` was
    called before.

    A block is opened once, and each try of a local transaction opens a new block. Before and after
    the `with` block, its methods raise TransactionRefused: they would have no effect.
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
        """The decorator's call; None for a block without a decorator."""
        self._use = _Use.UNUSED
        self._prepare_first = partial(self._prepare, event_type, payload, **fields)
        self._rollback_on = rollback_on
        self._outcome_set: LocalOutcome | None = None
        self._barriers: dict[UUID, Barrier] = {}
        self._entries: list[BarrierEntry] = []
        self._guarded: set[UUID] = set()
        """The messages whose local transaction was guarded, also if the guard failed."""
        self.ids: list[UUID] = []
        """The ids of the messages, in the order of sending."""

    @property
    def id(self) -> UUID:
        """The id of the first message."""
        return self.ids[0]

    @property
    def has_ended(self) -> bool:
        """Whether the outcome of the messages is recorded, or is about to be."""
        return self._use is _Use.ENDED

    def prepare(self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]) -> UUID:
        """Prepare one more message of the same local transaction; all get the same outcome."""
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
        """Enter the barrier in the local transaction's own database, which then proves the outcome.

        Call this in each local transaction, after the messages are prepared and before any
        statement: then a check waits for the outcome. On an AsyncSession, the entry happens when
        the session begins on its connection or, if it has begun already, with the commit. Raises
        LateTransaction when a check has given a message up, and ConfigurationError where no barrier
        is declared. Raises TransactionRefused for a transaction that cannot enter a barrier, and
        for a second one while another is open.
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
        """Record that a local transaction is to be guarded: only the barrier knows its outcome.

        Call this before the guard can fail: a transaction that could not enter has not committed.
        """
        self._guarded.update(self._barriers)

    def commit(self) -> None:
        """Set the outcome COMMIT of the local transaction; the end of the block records it."""
        self.set_outcome(LocalOutcome.COMMIT)

    def rollback(self) -> None:
        """Set the outcome ROLLBACK of the local transaction; the end of the block records it."""
        self.set_outcome(LocalOutcome.ROLLBACK)

    def unknown(self) -> None:
        """Set the outcome UNKNOWN: a check finds the outcome of the local transaction."""
        self.set_outcome(LocalOutcome.UNKNOWN)

    def set_outcome(self, outcome: LocalOutcome) -> None:
        """Set the outcome of the local transaction; the end of the block records it."""
        self._check_open(str(outcome).lower())
        self._outcome_set = outcome

    def _check_open(self, call: str) -> None:
        """Refuse a call without effect, or a preparation of a message that would stay open."""
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
        """Refuse a second use: messages, entries and outcome of the first would count for it."""
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
        """Record the local transaction's outcome; an unreachable database raises no error."""
        outcome = self._outcome(error)
        queried = self._barriers_to_query(outcome)
        outcomes_by_id = self._confirmed(queried) if queried else dict.fromkeys(self.ids, outcome)
        if LocalOutcome.UNKNOWN in outcomes_by_id.values():
            log.warning(
                "outcome is unknown, check-back resolves it",
                extra={"action": "outcome_unknown", "event_ids": list(map(str, self.ids))},
            )
        try:
            self._messages.end_each(outcomes_by_id)
        except IllegalTransition as conflict:
            log.error(  # noqa: TRY400  it is raised
                "outcome rejected, message already resolved",
                extra={
                    "action": "outcome_rejected",
                    "event_ids": list(map(str, conflict.event_ids)),
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
        ids, problem = contradictions(outcomes_by_id, reported=outcome, unguarded=unguarded)
        if problem and error is None:
            raise TransactionRefused(problem)
        if problem:
            log.error(
                "barrier contradicts the outcome",
                extra={
                    "action": "barrier_contradiction",
                    "event_ids": list(map(str, ids)),
                    "error": problem,
                },
            )

    def _barriers_to_query(self, outcome: LocalOutcome) -> Mapping[UUID, Barrier]:
        """Return the barriers to query before the outcome is recorded.

        The barriers that were entered, also without success. Where no entry was tried, a ROLLBACK
        queries all barriers, which also refuses a later entry.
        """
        if outcome is LocalOutcome.UNKNOWN:
            return {}
        if outcome is LocalOutcome.ROLLBACK and not self._guarded:
            return self._barriers
        return {i: barrier for i, barrier in self._barriers.items() if i in self._guarded}

    def _confirmed(self, queried: Mapping[UUID, Barrier]) -> dict[UUID, LocalOutcome]:
        """Return the outcome of each message, according to the barriers.

        Messages without a queried barrier get the outcome of their common local transaction.
        """
        if any(entry.is_open for entry in self._entries):
            # A query would wait in vain for the outcome, which comes after the end of the block.
            return dict.fromkeys(self.ids, LocalOutcome.UNKNOWN)
        found = outcomes(queried)
        return dict.fromkeys(self.ids, joint(found)) | found

    def _outcome(self, error: BaseException | None) -> LocalOutcome:
        if self._outcome_set is not None:
            return self._outcome_set
        if error is None:
            return LocalOutcome.COMMIT
        return (
            LocalOutcome.ROLLBACK if isinstance(error, self._rollback_on) else LocalOutcome.UNKNOWN
        )

    def __str__(self) -> str:
        """Name the messages."""
        return f"half message {', '.join(map(str, self.ids)) or '(not prepared)'}"
