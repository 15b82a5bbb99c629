"""Topics through time: their records, added partitions, and deletions by retention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from shieldtx.domain.states import TxKind
from tests.verification.oracle.timeline import Life

EventId = tuple[str, UUID]
"""An event's source and id."""
ALWAYS: Final = float("-inf")


def id_of(event: Life) -> EventId:
    """Return the identity of an event in its records."""
    return event.source, event.event_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One record of a topic."""

    partition: int
    sent_at: float
    source: str
    event_id: UUID
    key: str | None
    event_type: str
    causation_id: UUID | None
    written_at: float | str
    """The time in its header; a text that cannot be read as a time stays a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forged:
    """A record that no relay has sent, under the source of a service."""

    topic: str
    sent_at: float
    event_id: UUID
    key: str | None
    event_type: str
    written_at: float | str


@dataclass(kw_only=True, slots=True)
class Marks:
    """What stories know about records beyond the rows."""

    sent: dict[EventId, tuple[float, ...]] = field(default_factory=dict)
    """When each record of an event was sent; empty: the broker has lost it."""
    forged: list[Forged] = field(default_factory=list)
    inverted: dict[EventId, EventId] = field(default_factory=dict)
    """For an event: the later event of its key whose record lies before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A partition at one moment."""

    begin: int
    """The first offset that is kept."""
    end: int
    """The offset of the next record."""
    records: tuple[tuple[int, Record], ...]
    """With their offsets, in their order."""

    @property
    def is_whole(self) -> bool:
        """Return whether it has never lost a record by its age."""
        return self.begin == 0

    @property
    def first_sent(self) -> float | None:
        """Return when the oldest of its records was sent; None: it has none."""
        return self.records[0][1].sent_at if self.records else None

    def without(self, source: str) -> Partition:
        """Return the partition as a run sees it that takes this source for a foreign one."""
        kept = tuple(each for each in self.records if each[1].source != source)
        return replace(self, records=kept)


@dataclass(kw_only=True, slots=True)
class Log:
    """A topic of one kind."""

    topic: str
    kind: TxKind
    partitions: list[tuple[float, int]]
    """The numbers of partitions, each with the time since when."""
    cuts: list[tuple[float, int, float]] = field(default_factory=list)
    """When a partition has lost records, which one, and the time before which they were sent."""
    recreated_at: float | None = None
    """When it was deleted and recreated, without its records."""
    records: list[Record] = field(default_factory=list)

    def partitions_at(self, at: float) -> int:
        """Return how many partitions there were."""
        return max(number for since, number in self.partitions if since <= at)

    def topic_id(self, at: float) -> str:
        """Return the broker's id of the topic."""
        return f"{self.topic}-{self.kind}-{int(self._begins(at) > ALWAYS)}"

    def at(self, at: float) -> list[Partition]:
        """Return its partitions at that time."""
        return [self._partition(number, at) for number in range(self.partitions_at(at))]

    def there(self, event: EventId, at: float) -> list[tuple[int, int, Record]]:
        """Return the records of an event that are kept, with their partitions and offsets."""
        return list(self._there(event, at))

    def _there(self, event: EventId, at: float) -> Iterator[tuple[int, int, Record]]:
        for number, partition in enumerate(self.at(at)):
            for offset, record in partition.records:
                if (record.source, record.event_id) == event:
                    yield number, offset, record

    def _begins(self, at: float) -> float:
        made_again = self.recreated_at
        return made_again if made_again is not None and made_again <= at else ALWAYS

    def _partition(self, number: int, at: float) -> Partition:
        since = self._begins(at)
        sent = [r for r in self.records if r.partition == number and since <= r.sent_at <= at]
        offsets = list(enumerate(sorted(sent, key=lambda record: record.sent_at)))
        lost = [before for when, which, before in self.cuts if which == number and when <= at]
        kept = [each for each in offsets if each[1].sent_at >= max(lost, default=ALWAYS)]
        return Partition(
            begin=kept[0][0] if kept else len(offsets), end=len(offsets), records=tuple(kept)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """All topics of a history, and the night from which on they are read."""

    logs: dict[tuple[str, TxKind], Log]
    read_since: float

    def are_read(self, night: float) -> bool:
        """Return whether a night's run reads topics."""
        return night >= self.read_since
