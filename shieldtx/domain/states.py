"""The two lifecycles, of an outbox row and of an inbox row.

Each is one table of transitions. The table guards every UPDATE (`status IN sources_of(target)`),
defines the CHECK constraint, draws the diagrams of docs/ and drives the exhaustive test.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from shieldtx.errors import IllegalTransition


class TxKind(StrEnum):
    """The direction of an event."""

    COMMIT = "COMMIT"
    """The event happened: downstream services act on it."""

    ROLLBACK = "ROLLBACK"
    """The event is taken back: a downstream service gave up, and the services before it
    compensate."""


class Operation(StrEnum):
    """What happened to the business object."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class LocalOutcome(StrEnum):
    """The known outcome of a half message's local transaction."""

    COMMIT = "COMMIT"
    """The transaction committed: the message is to be sent."""

    ROLLBACK = "ROLLBACK"
    """The transaction did not commit and never will: the message is to be discarded."""

    UNKNOWN = "UNKNOWN"
    """The outcome is not known yet: the message stays HALF, and a later check follows."""


class OutboxStatus(StrEnum):
    """The state of an event in the database of the service that wrote it."""

    HALF = "HALF"
    """Prepared before a local transaction in another database; invisible to consumers until the
    outcome is known from a commit or rollback call or a check-back. The end of the checks ends this
    state too."""

    INIT = "INIT"
    """Waits for a relay: new, due later by choice, or due for another attempt."""

    PROCESSING = "PROCESSING"
    """Claimed by a relay under a lease. If the lease expires before the relay has written the
    outcome, another relay claims the row."""

    PROCESSED = "PROCESSED"
    """The broker acknowledged the event. Purged after its retention; until then, where the
    reconciliation finds that it never arrived, a repair may publish it again, or hand it over to a
    group."""

    FAILED = "FAILED"
    """Never to be delivered: rejected permanently or out of attempts. The local rollback of a
    COMMIT ran in the same transaction, if its type has one and no attempt is unconfirmed. Kept
    until an operator replays or discards it."""

    DISCARDED = "DISCARDED"
    """Never to be sent: its local transaction rolled back, it was cancelled before it was due, or
    it had FAILED and an operator discarded it. Purged after its retention."""

    UNRESOLVED = "UNRESOLVED"
    """A half message whose outcome no check could find; kept until an operator decides."""


class InboxStatus(StrEnum):
    """The state of an event in the database of a consumer group."""

    INIT = "INIT"
    """Received, or handed over by a repair; waits for an attempt, usually after an earlier event of
    its key."""

    PROCESSING = "PROCESSING"
    """An attempt has been counted: the handler runs, or failed and waits for its next attempt, or
    died with its process."""

    PROCESSED = "PROCESSED"
    """The effect is committed, in one transaction with this status. Purged after its retention."""

    MAX_RECONSUMED = "MAX_RECONSUMED"
    """The handler gave up, or an operator refused the event. The ROLLBACK event was written in the
    same transaction. Purged after its retention."""

    DEAD = "DEAD"
    """A compensation failed permanently, or the attempts at an event are used up and its handler
    parks such events: there is neither an effect nor a ROLLBACK event. Kept until an operator
    replays, refuses or discards it, or a rollback takes the event back."""

    DISCARDED = "DISCARDED"
    """A DEAD row that an operator discarded. The effect of a discarded compensation's event stays;
    a discarded event has no effect here, and the upstream does not compensate. Purged after its
    retention."""

    FENCED = "FENCED"
    """A tombstone: the rollback came before its event, which is refused when it arrives, or while
    the event was DEAD. Purged after its retention."""


S = TypeVar("S", OutboxStatus, InboxStatus)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition(Generic[S]):
    """One transition of a lifecycle; `source` is None where a row is inserted."""

    source: S | None
    target: S
    cause: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifecycle(Generic[S]):
    """All transitions of one kind of row, and its settled states.

    Only an operator, a repair or the rollback of a DEAD event changes a settled row, and a settled
    row blocks no other row.
    """

    name: str
    transitions: tuple[Transition[S], ...]
    settled: frozenset[S]
    purgeable: frozenset[S]

    @property
    def states(self) -> tuple[S, ...]:
        """Every state, in the order of first mention."""
        named = [s for t in self.transitions for s in (t.source, t.target) if s is not None]
        return tuple(dict.fromkeys(named))

    def allows(self, source: S | None, target: S) -> bool:
        """Whether a row may go from `source` (None: it does not exist yet) to `target`."""
        return any(t.source == source and t.target == target for t in self.transitions)

    def sources_of(self, target: S, *, among: Collection[S] | None = None) -> tuple[S, ...]:
        """Return the states from which a row may enter `target`: the guard of that UPDATE.

        With `among`, only the states that the UPDATE is meant for. Raises IllegalTransition where
        there are none.
        """
        found = tuple(
            t.source
            for t in self.transitions
            if t.target == target and t.source and (among is None or t.source in among)
        )
        if not found:
            places = "another state" if among is None else " or ".join(among)
            raise IllegalTransition(f"no {self.name} row enters {target} from {places}")
        return found

    def mermaid(self) -> str:
        """Return the lifecycle as a Mermaid state diagram, one transition a line."""
        lines = ["stateDiagram-v2"]
        lines += [f"    {t.source or '[*]'} --> {t.target}: {t.cause}" for t in self.transitions]
        return "\n".join(lines)


def _arrows(*rows: tuple[S | None, S, str]) -> tuple[Transition[S], ...]:
    return tuple(Transition(source=a, target=b, cause=cause) for a, b, cause in rows)


_O = OutboxStatus
OUTBOX: Lifecycle[OutboxStatus] = Lifecycle(
    name="outbox",
    transitions=_arrows(
        (None, _O.INIT, "business transaction"),
        (None, _O.HALF, "half message prepared"),
        (_O.HALF, _O.INIT, "local transaction committed"),
        (_O.HALF, _O.DISCARDED, "local transaction rolled back"),
        (_O.HALF, _O.UNRESOLVED, "checks used up or too old"),
        (_O.UNRESOLVED, _O.INIT, "an operator commits"),
        (_O.UNRESOLVED, _O.DISCARDED, "an operator rolls back"),
        (_O.INIT, _O.PROCESSING, "a relay claims"),
        (_O.PROCESSING, _O.PROCESSED, "broker acknowledged"),
        (_O.PROCESSING, _O.INIT, "retry later, or released"),
        (_O.PROCESSING, _O.PROCESSING, "lease ran out, taken over"),
        (_O.PROCESSING, _O.FAILED, "rejected for ever, or attempts used up"),
        (_O.FAILED, _O.INIT, "an operator replays"),
        (_O.FAILED, _O.DISCARDED, "an operator discards"),
        (_O.PROCESSED, _O.INIT, "a repair publishes it again"),
        (_O.INIT, _O.DISCARDED, "cancelled before it is due"),
    ),
    settled=frozenset({_O.PROCESSED, _O.FAILED, _O.DISCARDED, _O.UNRESOLVED}),
    purgeable=frozenset({_O.PROCESSED, _O.DISCARDED}),
)

_I = InboxStatus
INBOX: Lifecycle[InboxStatus] = Lifecycle(
    name="inbox",
    transitions=_arrows(
        (None, _I.INIT, "received"),
        (None, _I.PROCESSING, "received, attempt counted"),
        (_I.INIT, _I.PROCESSING, "attempt counted"),
        (_I.PROCESSING, _I.PROCESSED, "effect committed"),
        (_I.PROCESSING, _I.PROCESSING, "next attempt"),
        (_I.PROCESSING, _I.MAX_RECONSUMED, "gave up, ROLLBACK event written"),
        (_I.PROCESSING, _I.DEAD, "compensation gave up, or event parked"),
        (_I.DEAD, _I.PROCESSING, "an operator replays"),
        (_I.DEAD, _I.MAX_RECONSUMED, "an operator refuses the event"),
        (_I.DEAD, _I.DISCARDED, "an operator discards"),
        (_I.DEAD, _I.FENCED, "a rollback took the event back"),
        (None, _I.FENCED, "its rollback came first"),
    ),
    settled=frozenset({_I.PROCESSED, _I.MAX_RECONSUMED, _I.DEAD, _I.DISCARDED, _I.FENCED}),
    purgeable=frozenset({_I.PROCESSED, _I.MAX_RECONSUMED, _I.DISCARDED, _I.FENCED}),
)
