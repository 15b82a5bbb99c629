"""Hands missing events over to the group that lacks them, in the order in which they were sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.ports.hand_over import HandedOver, Line
from shieldtx.ports.repair import (
    Note,
    RepairAction,
    Repaired,
    RepairStore,
    RowSeen,
)
from shieldtx.reconcile.repair_decisions import (
    BUSINESS_KEY,
    NOT_STORED,
    OVERTAKEN,
    TAKEN_BACK,
    TOO_OLD,
)
from shieldtx.reconcile.repair_steps import Missing
from shieldtx.reconcile.repair_tally import Tally
from shieldtx.reconcile.rows_in_order import RowsInOrder

PART_BYTES: Final = 2 * 1024 * 1024
"""Of payloads that are read at once, or one larger payload: the drivers make up to eight copies."""

_GONE: Final = -1
"""In place of a number, where the outbox does not have the event any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much is done at once."""

    batch: int
    """Rows of one transaction."""
    looked_up: int
    """Events that are looked up at once: for later ones of their keys, an inbox is scanned."""
    part_bytes: int = PART_BYTES


@dataclass(slots=True)
class _Found:
    """How the events of a part of the rows stand."""

    sizes: Mapping[UUID, int]
    rows: list[RowSeen] = field(default_factory=list)
    """What is to be handed over."""
    overtaken: set[UUID] = field(default_factory=set)


class HandOver:
    """Hands the events of one service over to one group of another, or of the same.

    The rows are numbered first and handed over in the order of these numbers, for an inbox handles
    the events of a key in the order in which it was given them. Each part is looked up right before
    it is stored. What has been stored before it is earlier, so it counts as no overtaking.
    """

    def __init__(
        self,
        missing: Missing,
        *,
        stores: Mapping[str, RepairStore],
        note: Note,
        out_of_order: bool,
        young_since: datetime | None,
        dry_run: bool,
        limits: Limits,
    ) -> None:
        """Work on the databases of `stores`, by the names of their services.

        What the group settled before `young_since` it may have purged; None: it purges nothing.
        """
        self._missing = missing
        self._stores = stores
        self._upstream, self._downstream = stores[missing.upstream], stores[missing.downstream]
        self._note = note
        self._out_of_order = out_of_order
        self._young_since = young_since
        self._dry_run = dry_run
        self._limits = limits
        self._new: list[RowSeen] = []
        self._rows = RowsInOrder(missing.upstream)

    def add(self, row: RowSeen) -> None:
        """Add a PROCESSED row of the outbox whose event the group lacks."""
        self._new.append(row)
        if len(self._new) >= self._limits.looked_up:
            self._number()

    def carry_out(self, tally: Tally) -> None:
        """Hand over what was added, and count it."""
        self._number()
        for rows in self._rows.parts(self._limits.looked_up):
            found = self._look_up(rows, tally)
            for start in range(0, len(found.rows), self._limits.batch):
                self._hand_over(found, found.rows[start : start + self._limits.batch], tally)

    def _number(self) -> None:
        lines = self._upstream.lines([row.event_id for row in self._new])
        for row in self._new:
            line = lines.get(row.event_id)
            self._rows.add(_GONE if line is None else line.seq, row)
        self._new.clear()

    def _look_up(self, rows: Sequence[RowSeen], tally: Tally) -> _Found:
        """Leave out what has arrived, what was taken back, and what would come too late."""
        verdict = self._missing.verdict
        taken_back = self._taken_back(rows)
        lines = self._upstream.lines([row.event_id for row in rows])
        overtaken = self._overtaken(lines)
        # Last: what another repair hands over meanwhile has arrived, it is not overtaken by itself.
        events = {row.event_id: self._missing.event(row.event_id) for row in rows}
        arrived = self._downstream.received(list(events.values()))
        found = _Found(sizes={event_id: line.size for event_id, line in lines.items()})
        for row in rows:
            if events[row.event_id] in arrived:
                self._count(tally, Repaired(needless=1))
            elif row.event_id in taken_back:
                tally.refuse(verdict, TAKEN_BACK)
            elif self._may_be_forgotten(lines.get(row.event_id)):
                tally.refuse(verdict, TOO_OLD)
            elif row.event_id in overtaken and not self._out_of_order:
                tally.refuse(verdict, OVERTAKEN)
            else:
                found.rows.append(row)
        found.overtaken = overtaken
        return found

    def _taken_back(self, rows: Sequence[RowSeen]) -> set[UUID]:
        identities = [(row.event_id, row.source) for row in rows]
        return {
            event_id
            for store in self._stores.values()
            for event_id, _ in store.taken_back(identities)
        }

    def _may_be_forgotten(self, line: Line | None) -> bool:
        """Whether the group may have handled an earlier copy of the event, and purged its row."""
        since = self._young_since
        return bool(line and since and line.unconfirmed and line.written_at < since)

    def _overtaken(self, lines: Mapping[UUID, Line]) -> set[UUID]:
        """Return which events the group would get behind later ones of their keys."""
        missing = self._missing
        keyed = {event_id: line for event_id, line in lines.items() if line.key is not None}
        found = self._downstream.overtaken(missing.group, missing.upstream, keyed)
        others = {other for them in found.perhaps.values() for other in them}
        seqs = {other: line.seq for other, line in self._upstream.lines(sorted(others)).items()}
        # What the outbox has forgotten may have been any.
        return set(found.certainly) | {
            event_id
            for event_id, them in found.perhaps.items()
            if any(seqs.get(other, lines[event_id].seq) >= lines[event_id].seq for other in them)
        }

    def _hand_over(self, found: _Found, rows: Sequence[RowSeen], tally: Tally) -> None:
        counts: list[Repaired] = []
        # Batches before this one may have taken minutes.
        taken_back = self._taken_back(rows)
        rows = [row for row in rows if row.event_id not in taken_back]
        tally.refuse(self._missing.verdict, TAKEN_BACK, len(taken_back))
        parts = self._parts(rows, found.sizes, counts)
        handed = self._downstream.hand_over(
            self._missing.group, parts, note=self._note, dry_run=self._dry_run
        )
        for count in counts:
            self._count(tally, count)
        self._count(tally, _counted(handed, found.overtaken))
        tally.refuse(self._missing.verdict, BUSINESS_KEY, len(handed.conflicting))
        tally.refuse(self._missing.verdict, NOT_STORED, len(handed.refused))

    def _parts(
        self, rows: Sequence[RowSeen], sizes: Mapping[UUID, int], counts: list[Repaired]
    ) -> Iterator[Sequence[Envelope]]:
        """Yield the events of rows, and hold none of them while the next are read."""
        for part in _parts_of(rows, sizes, self._limits.part_bytes):
            yield self._read(part, counts)

    def _read(self, rows: Sequence[RowSeen], counts: list[Repaired]) -> Sequence[Envelope]:
        sent = self._upstream.sent(rows, payloads=not self._dry_run)
        counts.append(Repaired(needless=sent.needless, changed=sent.changed))
        return sent.envelopes

    def _count(self, tally: Tally, repaired: Repaired) -> None:
        tally.add(self._missing.verdict, RepairAction.HAND_OVER, repaired)


def _counted(handed: HandedOver, overtaken: set[UUID]) -> Repaired:
    return Repaired(
        done=len(handed.done),
        needless=len(handed.needless),
        out_of_order=len(handed.done & overtaken),
    )


def _parts_of(
    rows: Sequence[RowSeen], sizes: Mapping[UUID, int], most: int
) -> Iterator[Sequence[RowSeen]]:
    """Cut rows where the next one would make their payloads larger than `most` together."""
    start = size = 0
    for number, row in enumerate(rows):
        its = sizes.get(row.event_id, 0)
        if number > start and size + its > most:
            yield rows[start:number]
            start, size = number, 0
        size += its
    if start < len(rows):
        yield rows[start:]
