"""The findings of a reconciliation run, and the files that the run writes."""

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
from shieldtx.reconcile.run_context import RunContext
from shieldtx.reconcile.verdicts import Verdict, Weight
from shieldtx.reconcile.window import Window

PAYLOAD_LETTERS = 2_000
"""The most characters of a payload that are shown: a page of large payloads is useless."""

KEY_LETTERS = 200
"""The most characters of a key or business key that are shown."""

TOPICS = "(topics)"
"""Stands for the downstream where events are compared with their topics."""


class RunOutcome(IntEnum):
    """The outcome of a run; also the exit status of its process."""

    CLEAN = 0
    """Something could be judged, or there was nothing to judge, and nothing is wrong."""

    MISMATCHES = 1
    """At least one mismatch was found."""

    NOT_JUDGED = 2
    """No mismatch was found, but some or all events could not be judged."""

    ERROR = 3
    """The run failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Events of one kind from one service, and one group of another service that receives them.

    Where events are compared with topics, `downstream` is TOPICS and `group` is the logical topic.
    """

    kind: TxKind
    upstream: str
    downstream: str
    group: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """The number of events of a pair with one verdict."""

    pair: Pair
    verdict: Verdict
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The window in which the events of one kind from one service to another were judged."""

    kind: TxKind
    upstream: str
    downstream: str
    window: Window


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRow:
    """One event with a verdict; the times come from the two databases."""

    pair: Pair
    verdict: Verdict
    event_id: str
    topic: str
    event_type: str
    causation_id: str | None = None
    upstream_status: OutboxStatus | None = None
    downstream_status: InboxStatus | None = None
    attempts: int | None = None
    """Attempts of the group."""
    created_at: datetime | None = None
    """The time at which the event was written, by the upstream's clock."""
    published_at: datetime | None = None
    """The time at which the broker's acknowledgement was noted, by the upstream's clock."""
    received_at: datetime | None = None
    settled_at: datetime | None = None
    """The time at which the group settled the event, by the downstream's clock."""
    record: str | None = None
    """The position of the first record, `partition:offset`, where topics were read."""
    key: str | None = None
    """The first KEY_LETTERS characters, or the start of its SHA-256 where keys are masked; None:
    the event has no key, or no row shows it."""
    biz_key: str | None = None
    """The business key, in the same form."""
    payload: str | None = None
    """The first PAYLOAD_LETTERS characters; None: masked."""
    payload_letters: int | None = None
    """The number of characters of the payload; None: masked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """The events of a pair that were written on one day (UTC).

    Large tables are sampled: then all figures but the mismatches are estimates.
    """

    pair: Pair
    day: date
    events: int
    mismatches: int
    publish_ms: tuple[float, ...] | None = None
    """From written to published: p50, p90 and p99 in milliseconds; None where no event was
    published."""
    effect_ms: tuple[float, ...] | None = None
    """From written to settled downstream, likewise. Differences between the two databases' clocks
    are not corrected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All findings of a run: the contents of `summary.json` and of the page."""

    started_at: datetime
    seconds: float
    margin: timedelta
    bounds: tuple[Bounds, ...]
    counts: tuple[Count, ...]
    first_rows: tuple[FoundRow, ...]
    """The first few rows of each mismatch; `rows/` has all of them."""
    rows_without_room: int = 0
    """The number of requested rows for which the page has no room."""
    run_id: str = ""
    mismatched_events: int | None = None
    """The number of different events with a mismatch; None: an earlier release did not count it."""
    context: RunContext = field(default_factory=RunContext)
    selection: Selection = EVERYTHING
    full_because: tuple[str, ...] = ()
    """Why the run judged all events although the request was not for all."""
    days: tuple[Day, ...] = ()
    left_out: tuple[str, ...] = ()
    """Sentences about events that were found and not compared, with the reason; none is an error.
    """
    remarks: tuple[str, ...] = ()
    """Sentences about settings that should be changed; all events could be judged."""
    obstacles: tuple[str, ...] = ()
    """Events that should have been judged and could not be, with the reason, in addition to the
    obstacles of `bounds`."""
    unjudged_spans: tuple[str, ...] = ()
    """Sentences about times that no run has judged and no later run can judge. A later run may
    still start from this one, and does not report them again."""
    idle: Mapping[str, datetime] = field(default_factory=dict)
    """By service without events in the run: the time up to which it certainly had none."""
    observed: Observed = field(default_factory=Observed)
    """The observations that the next run must find again to start from this run."""

    @property
    def outcome(self) -> RunOutcome:
        """The outcome: mismatches take precedence over events that could not be judged.

        Rows in flight are in order as long as other rows could be judged.
        """
        if any(count.verdict.is_mismatch for count in self.counts):
            return RunOutcome.MISMATCHES
        weights = {count.verdict.weight for count in self.counts}
        if self.problems or weights == {Weight.UNJUDGED}:
            return RunOutcome.NOT_JUDGED
        return RunOutcome.CLEAN

    @property
    def problems(self) -> tuple[str, ...]:
        """Why some or all events could not be judged, each reason once."""
        return tuple(dict.fromkeys((*self.hindrances, *self.passing_problems)))

    @property
    def hindrances(self) -> tuple[str, ...]:
        """Problems that make the next run start from the same watermarks as this run."""
        hindered = (bounds.window.obstacle for bounds in self.bounds if bounds.window.obstacle)
        # In a quiet night, no event of these services may have changed.
        is_idle = self.left_out and not self.counts and self.selection.is_everything
        nothing = (_NOTHING_COMPARED,) if is_idle else ()
        return tuple(dict.fromkeys((*self.obstacles, *hindered, *nothing)))

    @property
    def passing_problems(self) -> tuple[str, ...]:
        """Problems that let the next run start from this run."""
        return (*self.unjudged_spans, *self._pairs_in_flight())

    def _pairs_in_flight(self) -> Iterator[str]:
        """Yield sentences for pairs of which a transaction leaves no row to judge."""
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
    """The folder of a run, and the names of its files."""

    path: Path

    @property
    def rows(self) -> Path:
        """Parquet: every row that is not in order or could not be judged.

        Clean rows are only counted: they are nearly all rows, and both databases have them already.
        """
        return self.path / "rows"

    @property
    def summary(self) -> Path:
        """Parquet: the number of events by pair and verdict."""
        return self.path / "summary"

    @property
    def findings(self) -> Path:
        """JSON: the Findings, written last. A run without this file did not complete."""
        return self.path / "summary.json"

    @property
    def page(self) -> Path:
        """The report as a page for readers."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """The log of Spark."""
        return self.path / "spark.log"


_FINDINGS = TypeAdapter(Findings)
_ROW = TypeAdapter(FoundRow)
_INDENT = 2


def to_json(findings: Findings) -> bytes:
    """Encode findings as JSON, for readers and programs."""
    return _FINDINGS.dump_json(findings, indent=_INDENT)


def bytes_of(row: FoundRow) -> int:
    """Return the number of bytes of a row in the JSON of its findings."""
    encoded = _ROW.dump_json(row, indent=_INDENT)
    # The row is an element of a list, and the list is a field of an object.
    return len(encoded) + 2 * _INDENT * (encoded.count(b"\n") + 1) + len(",\n")


def from_json(text: str | bytes) -> Findings:
    """Decode the JSON of `to_json`."""
    return _FINDINGS.validate_json(text)
