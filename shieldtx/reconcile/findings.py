"""What a run of the reconciliation has found, and the files in which it leaves that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import IntEnum
from pathlib import Path

from pydantic import TypeAdapter

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.observed import Observed
from shieldtx.reconcile.request import EVERYTHING, Selection
from shieldtx.reconcile.verdicts import Verdict, Weight
from shieldtx.reconcile.window import Window

PAYLOAD_LETTERS = 2_000
"""The most characters of a payload that are shown: a page of large payloads is of no use."""

TOPICS = "(topics)"
"""Stands for the other side where events are compared with their topics."""


class RunOutcome(IntEnum):
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
    """Events of one kind from one service, and one group of another that receives them.

    Or the topics that hold them: then `downstream` is TOPICS, and `group` is the logical topic.
    """

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
    """In which window the events of one kind from one service to another were judged."""

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
    attempts: int | None = None
    """That the group has made."""
    created_at: datetime | None = None
    """When it was written, by the upstream's clock."""
    published_at: datetime | None = None
    """When the broker's acknowledgement was noted, by the upstream's clock."""
    received_at: datetime | None = None
    settled_at: datetime | None = None
    """When the group had dealt with it, by the downstream's clock."""
    record: str | None = None
    """Where its first record lies: `partition:offset`, where topics were read."""
    payload: str | None = None
    """Its first PAYLOAD_LETTERS characters; None: masked."""
    payload_letters: int | None = None
    """How many characters it has; None: masked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """What became of the events of a pair that were written on one day (UTC).

    Of large tables a sample is drawn, so that all but the mismatches are estimates.
    """

    pair: Pair
    day: date
    events: int
    mismatches: int
    publish_ms: tuple[float, ...] | None = None
    """From written to published: p50, p90 and p99 in milliseconds; None where none was."""
    effect_ms: tuple[float, ...] | None = None
    """From written to settled downstream, likewise. It takes both databases' clocks as one."""


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
    rows_without_room: int = 0
    """How many more of them were asked for than a page has room for."""
    run_id: str = ""
    selection: Selection = EVERYTHING
    full_because: tuple[str, ...] = ()
    """Why all events were looked at though nobody asked for it."""
    days: tuple[Day, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was seen and not compared, and why, in sentences; it is nobody's fault."""
    remarks: tuple[str, ...] = ()
    """What of the configuration should be set otherwise, in sentences; all could be judged."""
    obstacles: tuple[str, ...] = ()
    """What should have been judged and could not be, and why, beyond the obstacles of `bounds`."""
    unjudged_spans: tuple[str, ...] = ()
    """Of which times no run has judged and no later one can, in sentences: a later run may start
    all the same, and does not report it again."""
    idle: Mapping[str, datetime] = field(default_factory=dict)
    """By service of which the run met no event: up to when there was none for certain."""
    observed: Observed = field(default_factory=Observed)
    """What the next run has to meet again to start from this one."""

    @property
    def outcome(self) -> RunOutcome:
        """Mismatches come first, then what could not be judged.

        Rows in flight are in order as long as others could be judged.
        """
        if any(count.verdict.is_mismatch for count in self.counts):
            return RunOutcome.MISMATCHES
        weights = {count.verdict.weight for count in self.counts}
        if self.problems or weights == {Weight.UNJUDGED}:
            return RunOutcome.NOT_JUDGED
        return RunOutcome.CLEAN

    @property
    def problems(self) -> tuple[str, ...]:
        """Why some or all of it could not be judged, each reason once."""
        return tuple(dict.fromkeys((*self.hindrances, *self.passing_problems)))

    @property
    def hindrances(self) -> tuple[str, ...]:
        """Those of the problems for which the next run has to start where this one did."""
        hindered = (bounds.window.obstacle for bounds in self.bounds if bounds.window.obstacle)
        # In a quiet night, nothing of theirs may have moved.
        is_idle = self.left_out and not self.counts and self.selection.is_everything
        nothing = (_NOTHING_COMPARED,) if is_idle else ()
        return tuple(dict.fromkeys((*self.obstacles, *hindered, *nothing)))

    @property
    def passing_problems(self) -> tuple[str, ...]:
        """Those of the problems with which the next run may start from this one."""
        return (*self.unjudged_spans, *self._pairs_in_flight())

    def _pairs_in_flight(self) -> Iterator[str]:
        """Say which pairs have nothing but rows in flight or too old, because of a transaction."""
        windows = {(b.kind, b.upstream, b.downstream): b.window for b in self.bounds}
        for pair, verdicts in self.by_pair.items():
            window = windows.get((pair.kind, pair.upstream, pair.downstream), Window())
            is_held = window.transaction_since is not None and Verdict.IN_FLIGHT in verdicts
            if is_held and all(verdict.weight is Weight.UNJUDGED for verdict in verdicts):
                yield (
                    f"nothing that has moved between {pair.upstream} and group {pair.group} of "
                    f"{pair.downstream} ({pair.kind}) could be judged: a transaction of one of "
                    f"them runs since {window.transaction_since:%Y-%m-%d %H:%M:%S%z}, and what "
                    "has moved since then is in flight; end it, if it never ends by itself "
                    "(`pg_stat_activity`)"
                )

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


_NOTHING_COMPARED = (
    "no event of these services was there to compare, and others were left out: see whether the "
    "services are named as they name themselves (SHIELDTX_SOURCE)"
)


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
_ROW = TypeAdapter(FoundRow)
_INDENT = 2


def to_json(findings: Findings) -> bytes:
    """Encode findings as JSON for people and programs."""
    return _FINDINGS.dump_json(findings, indent=_INDENT)


def bytes_of(row: FoundRow) -> int:
    """Return how many bytes a row takes in the JSON of its findings."""
    encoded = _ROW.dump_json(row, indent=_INDENT)
    # It is in a list, and the list in an object.
    return len(encoded) + 2 * _INDENT * (encoded.count(b"\n") + 1) + len(",\n")


def from_json(text: str | bytes) -> Findings:
    """Decode what `to_json` has made."""
    return _FINDINGS.validate_json(text)
