"""Times that no run has judged, because a database was restored to an old copy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from shieldtx.ports.database_history import DatabaseHistory, OpenRow, Remains, SettledRow
from shieldtx.reconcile import restored_copies
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.judged_spans import JudgedRun, judged_until, unjudged_spans
from shieldtx.reconcile.window import Window
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.restores import is_lost
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.timeline import NEVER, Life, Restore

RESTORED: Final = "was restored from an earlier copy"
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def _time(minutes: float) -> datetime:
    return _BEGAN + timedelta(minutes=minutes)


def _minutes(time: datetime) -> float:
    return (time - _BEGAN) / timedelta(minutes=1)


# --- the rules in Python ----------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class EarlierRuns:
    """The times up to which the nights of a history have judged."""

    _runs: list[JudgedRun] = field(default_factory=list)
    """The latest first."""

    def spans(self, night: Judged, rows: Rows, found: Collection[Pair]) -> list[str]:
        """Return the judged times that a database has lost; this run then counts as earlier."""
        databases = _Databases(night=night, rows=rows)
        called = [night.called(service) for service in sorted(night.retention)]
        margin = timedelta(minutes=night.margin)
        runs = restored_copies.as_restored(self._runs, called, databases, margin=margin)
        until = judged_until(runs, called)
        self._runs.insert(
            0,
            JudgedRun(
                started_at=_time(night.at),
                services=frozenset(called),
                watermarks=dict.fromkeys(called, _time(night.watermark)),
                histories={name: databases.now(name) for name in called},
            ),
        )
        return [span for span in unjudged_spans(_windows(night, found), until) if RESTORED in span]


def _windows(night: Judged, found: Collection[Pair]) -> dict[Stream, Window]:
    streams = {(p.kind, p.upstream, p.downstream) for p in found}
    return {
        Stream(kind=kind, upstream=one, downstream=other): Window(
            horizon=None if (since := night.horizon(one, other)) == -NEVER else _time(since)
        )
        for kind, one, other in streams
        if {one, other} <= {night.called(service) for service in night.retention}
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Databases:
    """The databases of a night, by their rows."""

    night: Judged
    rows: Rows

    def now(self, service: str) -> DatabaseHistory:
        both = [self._table(service, number) for number in (0, 1)]
        return DatabaseHistory(
            system="one",
            timeline="1",
            objects=(1, 2, 3),
            newest=(None, None),
            latest_open=(_latest_open(both[0]), _latest_open(both[1])),
            latest_settled=(_latest_settled(both[0]), _latest_settled(both[1])),
            asked_at=_time(self.night.at),
        )

    def remains_of(self, service: str, earlier: DatabaseHistory) -> Remains:
        kept = {self.night.called(name): each for name, each in self.night.retention.items()}
        since = self.night.at - (kept[service] or NEVER)
        unchanged, gone = False, []
        for number in (0, 1):
            table = self._table(service, number)
            settled, open_ = earlier.latest_settled[number], earlier.latest_open[number]
            if settled is not None:
                at = _minutes(settled.settled_at)
                mine = [r for r in table if r["event_id"] == settled.event_id and _came(r) <= at]
                unchanged |= any(r["settled_at"] == at for r in mine)
                if not any(r["settled_at"] is None or r["settled_at"] >= at for r in mine):
                    gone.append(at)
            if open_ is not None and not any(r["event_id"] == open_.event_id for r in table):
                assert earlier.asked_at is not None
                gone.append(_minutes(earlier.asked_at))
        lost = [at for at in gone if at >= since]
        if lost:
            return Remains(copied_before=_time(min(lost)))
        return Remains(has_settlement=unchanged)

    def last_settled(self, service: str, *, before: datetime) -> datetime | None:
        rows = [row for number in (0, 1) for row in self._table(service, number)]
        times = [t for row in rows if (t := row["settled_at"]) is not None]
        last = max((t for t in times if t <= _minutes(before)), default=None)
        return None if last is None else _time(last)

    def _table(self, service: str, number: int) -> list[Row]:
        rows = (self.rows.outbox, self.rows.inbox)[number]
        return [row for row in rows if row["service"] == service]


def _came(row: Row) -> float:
    return float(row["created_at"] if row["group"] is None else row["received_at"])


def _latest_open(rows: Sequence[Row]) -> OpenRow | None:
    open_ = [row for row in rows if row["settled_at"] is None]
    last = max(open_, key=lambda row: int(row["seq"]), default=None)
    return None if last is None else OpenRow(event_id=last["event_id"], seq=last["seq"])


def _latest_settled(rows: Sequence[Row]) -> SettledRow | None:
    settled = [row for row in rows if row["settled_at"] is not None]
    last = max(settled, key=lambda row: (row["settled_at"], row["event_id"]), default=None)
    if last is None:
        return None
    return SettledRow(event_id=last["event_id"], settled_at=_time(last["settled_at"]))


# --- what a run has to report ------------------------------------------------------------------


def may_tell(h: History, night: Judged) -> bool:
    """Return whether rows of a pair's latest night are gone that no purge removed."""
    return any(
        life.born_at <= before < life.gone_at <= night.at
        and life.gone_at < life.settled_at + (kept or NEVER)
        for life in h.lives
        for kept in [h.setting.retention[life.service]]
        for before in _last_compared(h, night, life.service)
    )


def _last_compared(h: History, night: Judged, service: str) -> Iterator[float]:
    """Yield when a night judged a service with each other one, by their present names."""
    for other in h.setting.services:
        pair = {night.called(service), night.called(other)}
        yield max(
            (
                each.at
                for each in h.setting.nights
                if each.at < night.at and pair <= {each.called(name) for name in each.retention}
            ),
            default=-NEVER,
        )


def must_tell(h: History, night: Judged) -> bool:
    """Return whether the copy restored since the last night is older than a pair's retention."""
    earlier = [each for each in h.setting.nights if each.at < night.at]
    return any(
        _is_too_old(h, restore, earlier, night, pair)
        for restore in h.restores
        if earlier and earlier[-1].at < restore.at < night.at
        for pair in h.expected(night)
        if night.called(restore.service) in {pair.upstream, pair.downstream}
    )


def _is_too_old(
    h: History, restore: Restore, earlier: Sequence[Judged], night: Judged, pair: Pair
) -> bool:
    both = pair.upstream, pair.downstream
    if any(
        name not in {each.called(s) for s in h.setting.services}
        for name in both
        for each in earlier
    ):
        return False
    horizon = night.horizon(*both)
    last = max(_settled_by(h, restore.service, earlier[-1].at, night.at), default=-NEVER)
    kept = h.setting.retention[restore.service] or NEVER
    proven = [at for at in _last_lost(h, restore, earlier[-1].at) if at >= night.at - kept]
    judged = [each.watermark for each in earlier if not [*_last_lost(h, restore, each.at)]]
    return bool(proven) and max([last, restore.to, *judged]) < horizon


def _settled_by(h: History, service: str, then: float, now: float) -> Iterator[float]:
    for life in h.lives:
        row = life.at(now) if life.service == service else None
        if row is not None and row["settled_at"] is not None and row["settled_at"] <= then:
            yield row["settled_at"]


def _last_lost(h: History, restore: Restore, then: float) -> Iterator[float]:
    """Yield when the last row of a table had settled, where a copy lacks it."""
    for is_outbox in (True, False):
        settled: list[tuple[float, int, Life]] = [
            (row["settled_at"], life.event_id.int, life)
            for life in h.lives
            if life.service == restore.service and (life.group is None) == is_outbox
            if (row := life.at(then)) is not None and row["settled_at"] is not None
        ]
        at, _, last = max(settled, key=lambda each: each[:2], default=(0.0, 0, None))
        if last is not None and is_lost(restore, last):
            yield at
