"""What happened to events in a test: the result of a drain, its errors, the states of an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import ShieldTxError
from shieldtx.ports.inbox import AttemptOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRow:
    """An event in the outbox of a service or, with a `group`, in the inbox of that group."""

    source: str
    """The service whose database has the row."""
    group: str | None
    event_id: UUID | None
    """None for a parked record, which could not be read as an event."""
    type: str
    """The event type; the broker's name of the topic for a parked record."""
    kind: TxKind | None
    status: OutboxStatus | InboxStatus | None
    """None for a parked record."""
    attempts: int
    due_at: datetime | None
    """When a relay, a check or an attempt may take the row, if the event waits."""
    reason: str
    """The last error."""

    def __str__(self) -> str:
        """Describe the row in a line."""
        place = "outbox" if self.group is None else f"group {self.group}"
        kind = " (rollback)" if self.kind is TxKind.ROLLBACK else ""
        due = f", due at {self.due_at:%Y-%m-%d %H:%M:%S}" if self.due_at else ""
        attempts = f", {self.attempts} attempts" if self.attempts else ""
        reason = f": {self.reason}" if self.reason else ""
        return (
            f"{self.type}{kind} {self.event_id or ''} in {self.source}, {place}: "
            f"{self.status or 'PARKED'}{attempts}{due}{reason}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained:
    """The result of a drain."""

    published: int = 0
    """Events that the broker acknowledged."""
    outcomes: Counter[AttemptOutcome] = field(default_factory=Counter)
    """Attempts of handlers and compensations, by outcome."""
    checked: int = 0
    """Checks of half messages."""
    outage: str = ""
    """Why the broker was unavailable, "" if it was available."""
    waiting: Sequence[EventRow] = ()
    """Events that wait: for a due time, a retry, a check or an earlier event of their key."""
    failures: Sequence[EventRow] = ()
    """Events that became FAILED, DEAD or UNRESOLVED, and records that were parked, since the last
    drain.

    Also events that a group gave up (MAX_RECONSUMED), unless the handler refused them: it raised
    `Refused`, or another error of `refuse_on`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventStates:
    """The states of one event in the services of a test."""

    outbox: OutboxStatus | None
    """In the outbox of the service that wrote it; None if it came from another service."""
    inbox: Mapping[str, InboxStatus]
    """In the inbox of each group that received it."""
    attempts: Mapping[str, int]
    """The attempts of each group."""


class NotDrained(ShieldTxError):
    """There was still something to do after all passes of a drain; see `waiting`."""

    def __init__(self, passes: int, waiting: Sequence[EventRow]) -> None:
        """Name the rows that are left."""
        super().__init__(
            f"there is still something to do after {passes} passes: does a handler write an event "
            f"that leads to itself? Waiting: {_listed(waiting)}"
        )
        self.waiting = waiting


class EventsFailed(ShieldTxError):
    """Events failed permanently during a drain, or the broker was unavailable; see `result`."""

    def __init__(self, result: Drained) -> None:
        """Name the failed events."""
        problems = [f"the broker was unavailable: {result.outage}"] if result.outage else []
        if result.failures:
            problems.append(_listed(result.failures))
        super().__init__(
            "\n".join(problems)
            + "\nA test that expects this calls drain(check=False) and looks at "
            "its result"
        )
        self.result = result


_LISTED = 10


def _listed(rows: Sequence[EventRow]) -> str:
    lines = [f"\n  {row}" for row in rows[:_LISTED]]
    if len(rows) > _LISTED:
        lines.append(f"\n  and {len(rows) - _LISTED} more")
    return "".join(lines) or "nothing"
