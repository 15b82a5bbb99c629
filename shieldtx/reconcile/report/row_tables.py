"""The rows of a verdict as tables: what all rows of a table share is in its caption."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from shieldtx.reconcile.findings import TOPICS, FoundRow, Pair
from shieldtx.reconcile.verdicts import Verdict

OTHERS_NAMED = 2
"""The most other mismatches of an event that a row names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step of an event; `passed` is in seconds since the step before it."""

    name: str
    at: datetime | None
    passed: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTable:
    """The rows of one pair, topic and type, in their order."""

    pair: Pair
    topic: str
    event_type: str
    rows: Sequence[FoundRow]

    @property
    def is_of_topic(self) -> bool:
        """Whether the rows are verdicts about a topic, without a group and an inbox."""
        return self.pair.downstream == TOPICS

    @property
    def has_records(self) -> bool:
        """Whether the table shows the positions of records."""
        return self.is_of_topic or any(row.record is not None for row in self.rows)

    @property
    def columns(self) -> int:
        """The number of columns."""
        return (5 if self.is_of_topic else 8) + self.has_records


def tables_of(rows: Iterable[FoundRow]) -> list[RowTable]:
    """Return the tables of a verdict's rows, in the order of their first rows."""
    found: dict[tuple[Pair, str, str], list[FoundRow]] = defaultdict(list)
    for row in rows:
        found[row.pair, row.topic, row.event_type].append(row)
    return [
        RowTable(pair=pair, topic=topic, event_type=event_type, rows=of_table)
        for (pair, topic, event_type), of_table in found.items()
    ]


def steps_of(row: FoundRow) -> Iterable[Step]:
    """Yield the times of an event, in the order of its timeline."""
    times = [("Written", row.created_at), ("Published", row.published_at)]
    if row.pair.downstream != TOPICS:
        times += [("Received", row.received_at), ("Settled", row.settled_at)]
    before: datetime | None = None
    for name, at in times:
        passed = (at - before).total_seconds() if at and before else None
        yield Step(name=name, at=at, passed=passed)
        before = at or before


def mismatches_by_event(rows: Iterable[FoundRow]) -> Mapping[tuple[str, str], Sequence[Verdict]]:
    """Return the mismatches of each event, by its source and id; of the rows on the page only."""
    found: dict[tuple[str, str], dict[Verdict, None]] = defaultdict(dict)
    for row in rows:
        if row.verdict.is_mismatch:
            found[row.pair.upstream, row.event_id][row.verdict] = None
    return {event: tuple(verdicts) for event, verdicts in found.items()}
