"""What a run of the reconciliation has found, and the files in which it leaves that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from pathlib import Path

from pydantic import TypeAdapter

from shieldtx.reconcile.rules import Verdict, Weight
from shieldtx.reconcile.window import Window
from shieldtx.states import InboxStatus, OutboxStatus, TxKind


class Outcome(IntEnum):
    """How a run ended; also the exit status of its process."""

    CLEAN = 0
    """Something could be judged, or there was nothing, and nothing is wrong."""

    MISMATCHES = 1
    """Something is wrong."""

    NOT_JUDGED = 2
    """Nothing wrong was found, but some or all of it could not be judged."""

    ERROR = 3
    """The run broke off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Events of one kind from one service, and one group of the other that receives them."""

    kind: TxKind
    upstream: str
    downstream: str
    group: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """How many events of a pair got a verdict."""

    pair: Pair
    verdict: Verdict
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """In which window the events of one kind from one service to the other were judged."""

    kind: TxKind
    upstream: str
    downstream: str
    window: Window


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRow:
    """One event with a verdict; times are those of the two databases."""

    pair: Pair
    verdict: Verdict
    event_id: str
    topic: str
    event_type: str
    causation_id: str | None = None
    upstream_status: OutboxStatus | None = None
    downstream_status: InboxStatus | None = None
    created_at: datetime | None = None
    received_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All that a run has found: what `summary.json` holds and the page shows."""

    started_at: datetime
    seconds: float
    margin: timedelta
    bounds: tuple[Bounds, ...]
    counts: tuple[Count, ...]
    first_rows: tuple[FoundRow, ...]
    """The first few of each mismatch; all of them are in `rows/`."""

    @property
    def outcome(self) -> Outcome:
        """Mismatches come first, then what could not be judged.

        Rows in flight are in order as long as others could be judged.
        """
        if any(count.verdict.is_mismatch for count in self.counts):
            return Outcome.MISMATCHES
        weights = {count.verdict.weight for count in self.counts}
        if any(bounds.window.obstacle for bounds in self.bounds) or weights == {Weight.UNJUDGED}:
            return Outcome.NOT_JUDGED
        return Outcome.CLEAN

    @property
    def totals(self) -> Counter[Verdict]:
        """The number of events by verdict, over all pairs."""
        totals: Counter[Verdict] = Counter()
        for count in self.counts:
            totals[count.verdict] += count.rows
        return totals

    @property
    def by_pair(self) -> dict[Pair, Counter[Verdict]]:
        """The number of events by pair and verdict."""
        found: dict[Pair, Counter[Verdict]] = {}
        for count in self.counts:
            found.setdefault(count.pair, Counter())[count.verdict] += count.rows
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFolder:
    """The folder of a run, by the names of what is in it."""

    path: Path

    @property
    def rows(self) -> Path:
        """Parquet: every row that is not in order or could not be judged.

        Clean rows are only counted: they are nearly all rows, and both databases hold them already.
        """
        return self.path / "rows"

    @property
    def summary(self) -> Path:
        """Parquet: the number of events by pair and verdict."""
        return self.path / "summary"

    @property
    def findings(self) -> Path:
        """JSON: the Findings, written last; without it the run did not end well."""
        return self.path / "summary.json"

    @property
    def page(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """What Spark said."""
        return self.path / "spark.log"


_FINDINGS = TypeAdapter(Findings)


def to_json(findings: Findings) -> bytes:
    """Encode findings as JSON for people and programs."""
    return _FINDINGS.dump_json(findings, indent=2)


def from_json(text: str | bytes) -> Findings:
    """Decode what `to_json` has made."""
    return _FINDINGS.validate_json(text)
