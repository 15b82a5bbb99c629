"""What databases tell of an event before it is handed over to a group, and what became of it."""

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
"""A topic and the key of an event: what keeps its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an event of the outbox stands among those of its key.

    Events of a key are sent in the order of their numbers, and those that have a chosen delay when
    they are due. Between one with a delay and one without no order is promised: their times say in
    which order they were sent.
    """

    seq: int
    """Its number."""
    written_at: datetime
    delayed_until: datetime | None = None
    """When it was due, if it has a chosen delay."""

    @property
    def due_at(self) -> datetime:
        """Return when it was to be sent."""
        return self.written_at if self.delayed_until is None else self.delayed_until


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """Includes each place that is behind one of some others; and a few more of the same key."""

    seq: int | None
    """Of events without a delay: those with a higher number."""
    due_at: datetime | None
    """Of events without a delay, too: those that were written after this time."""
    delayed_until: datetime
    """Of events with a chosen delay: those that were due at this time or later."""

    @classmethod
    def any_of(cls, places: Iterable[Place]) -> Behind | None:
        """Return it for some places; None: there are none."""
        places = list(places)
        if not places:
            return None
        delayed = [place.delayed_until for place in places if place.delayed_until is not None]
        return cls(
            seq=min((each.seq for each in places if each.delayed_until is None), default=None),
            due_at=min(delayed, default=None),
            delayed_until=min(place.due_at for place in places),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Line(Place):
    """An event of the outbox, with what a repair asks of it."""

    kind: TxKind
    type: str
    topic: str
    key: str | None
    unconfirmed: bool
    """An attempt before the one that was acknowledged may have delivered it."""
    size: int
    """Bytes of its payload and headers."""

    @property
    def ordered_by(self) -> Key | None:
        """Return what keeps its order; None: it has no order, as without a key."""
        if self.key is None or self.kind is not TxKind.COMMIT:
            return None
        return self.topic, self.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Sibling(Place):
    """Another event of a key in the outbox, which was sent or is to be sent."""

    event_id: UUID
    type: str
    ordered_by: Key
    is_sent: bool
    """Otherwise it is still to be sent."""
    settled_at: datetime | None
    unconfirmed: bool
    """An attempt before the one that was acknowledged may have delivered it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """An event that a group has received."""

    event_id: UUID
    ordered_by: Key
    written_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Events that are to be handed over, as their outbox has them now."""

    envelopes: Sequence[Envelope]
    """Of those that still are as they were seen, in the order in which they were asked for."""
    needless: int = 0
    """They are in line again: a relay sends them."""
    changed: int = 0
    """They are gone, or not as they were seen."""
    on_their_way: AbstractSet[UUID] = frozenset()
    """Of both: those in line, and those that were sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandedOver:
    """What became of events that were handed over to a group."""

    done: AbstractSet[UUID] = frozenset()
    """They are in its inbox now, and were not before."""
    needless: AbstractSet[UUID] = frozenset()
    """It has received them, or refuses them because their rollback came first."""
    conflicting: AbstractSet[UUID] = frozenset()
    """It has received another event with their business key."""
    refused: AbstractSet[UUID] = frozenset()
    """Its database refuses them, as for letters that its encoding does not have."""
    behind: AbstractSet[UUID] = frozenset()
    """They are not stored because an earlier event of their key is not."""

    @property
    def not_stored(self) -> AbstractSet[UUID]:
        """Return those that the group lacks still."""
        return self.conflicting | self.refused | self.behind

    def plus(self, other: HandedOver) -> HandedOver:
        """Add what became of others."""
        return HandedOver(
            done=self.done | other.done,
            needless=self.needless | other.needless,
            conflicting=self.conflicting | other.conflicting,
            refused=self.refused | other.refused,
            behind=self.behind | other.behind,
        )
