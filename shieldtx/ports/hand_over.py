"""What databases know of events before their hand-over to a group, and the hand-over's results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind

Key: TypeAlias = tuple[str, str]
"""A topic and the key of an event: their events are delivered in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyPosition:
    """The position of an event of the outbox among the events of its key.

    Events of a key are sent in the order of their numbers, and events with a chosen delay when they
    are due. Between an event with a delay and one without, no order is guaranteed: their times give
    the order of sending.
    """

    seq: int
    """The event's number in the outbox."""
    written_at: datetime
    delayed_until: datetime | None = None
    """The due time of an event with a chosen delay."""

    @property
    def due_at(self) -> datetime:
        """Return when the event was to be sent."""
        return self.written_at if self.delayed_until is None else self.delayed_until


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterPositions:
    """Covers every position of a key after any of the given ones, and a few others."""

    seq: int | None
    """Events without a delay: those with a higher number."""
    due_at: datetime | None
    """Also events without a delay: those written after this time."""
    delayed_until: datetime
    """Events with a chosen delay: those due at this time or later."""

    @classmethod
    def any_of(cls, key_positions: Iterable[KeyPosition]) -> LaterPositions | None:
        """Return the bounds for the given positions; None: no positions are given."""
        key_positions = list(key_positions)
        if not key_positions:
            return None
        delayed = [
            position.delayed_until
            for position in key_positions
            if position.delayed_until is not None
        ]
        return cls(
            seq=min(
                (each.seq for each in key_positions if each.delayed_until is None), default=None
            ),
            due_at=min(delayed, default=None),
            delayed_until=min(position.due_at for position in key_positions),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EventPosition(KeyPosition):
    """An event of the outbox, with the facts that a repair needs."""

    kind: TxKind
    type: str
    topic: str
    key: str | None
    unconfirmed: bool
    """An attempt before the acknowledged one may have delivered it."""
    size: int
    """Bytes of its payload and headers."""

    @property
    def ordered_by(self) -> Key | None:
        """Return the topic and key that keep its order; None: without order, as without a key."""
        if self.key is None or self.kind is not TxKind.COMMIT:
            return None
        return self.topic, self.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Sibling(KeyPosition):
    """Another event of a key in the outbox, sent or still to be sent."""

    event_id: UUID
    type: str
    ordered_by: Key
    is_sent: bool
    """False: still to be sent."""
    settled_at: datetime | None
    unconfirmed: bool
    """An attempt before the acknowledged one may have delivered it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """An event that a group has received."""

    event_id: UUID
    ordered_by: Key
    written_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Events to hand over, in their present state in the outbox."""

    envelopes: Sequence[Envelope]
    """The events that are unchanged since the run saw them, in the requested order."""
    needless: int = 0
    """Events that are queued again: a relay sends them."""
    changed: int = 0
    """Events that are missing, or changed since the run saw them."""
    on_their_way: AbstractSet[UUID] = frozenset()
    """Events of `needless` and `changed`: the queued ones, and those that were sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandedOver:
    """The result of handing events over to a group."""

    done: AbstractSet[UUID] = frozenset()
    """The group's inbox has them now, and did not before."""
    needless: AbstractSet[UUID] = frozenset()
    """The group has received them, or refuses them because their rollback came first."""
    conflicting: AbstractSet[UUID] = frozenset()
    """The group has received another event with their business key."""
    refused: AbstractSet[UUID] = frozenset()
    """The group's database refuses them, for example for characters that its encoding lacks."""
    later: AbstractSet[UUID] = frozenset()
    """Not stored, because an earlier event of their key is not stored."""

    @property
    def not_stored(self) -> AbstractSet[UUID]:
        """Return the events that the group still lacks."""
        return self.conflicting | self.refused | self.later

    def plus(self, other: HandedOver) -> HandedOver:
        """Add the result of other events."""
        return HandedOver(
            done=self.done | other.done,
            needless=self.needless | other.needless,
            conflicting=self.conflicting | other.conflicting,
            refused=self.refused | other.refused,
            later=self.later | other.later,
        )
