"""Converts rows of frames into the values of a run's findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import TypeVar

from pyspark.sql import DataFrame, Row

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import Route
from shieldtx.reconcile.findings import TOPICS, Count, FoundRow, Pair
from shieldtx.reconcile.verdicts import Verdict

from ..compare import transforms
from ..compare.digest_comparison import Compared

S = TypeVar("S", OutboxStatus, InboxStatus)
_DONE = (Verdict.MATCHED, Verdict.REFUSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """The number of events of a pair with a verdict."""

    pair: Pair
    verdict: Verdict
    rows: int
    unlisted: int = 0
    """Of these, rows that wait for an operator and that a further run would not find."""
    ambiguous: int = 0
    """Of these, events whose missing row or record may have been removed by age, or never existed.
    """
    unknown: int = 0
    """Of the ambiguous ones, events without an outbox row."""
    arrived: int = 0
    """Of the ambiguous ones, events with an inbox row."""
    ahead: int = 0
    """Of these, rows that are not judged until one of their times, which is in the future, has
    come."""
    day: date | None = None
    """Of mismatches: the day on which they were written, in UTC."""


def tallies_of(rows: DataFrame) -> list[Tally]:
    """Return the counts of judged rows."""
    return [
        Tally(
            pair=_pair(row),
            verdict=Verdict[row.verdict],
            rows=row.rows,
            unlisted=row.unlisted,
            ambiguous=row.ambiguous,
            unknown=row.unknown,
            arrived=row.arrived,
            ahead=row.ahead,
            day=row.day,
        )
        for row in transforms.counted(rows).collect()
    ]


def unlisted_in(tallies: Iterable[Tally]) -> Iterable[str]:
    """Yield sentences for rows that a further run would not find, because they have no error."""
    found: Counter[Pair] = Counter()
    for tally in tallies:
        found[tally.pair] += tally.unlisted
    for pair, rows in found.items():
        if rows:
            yield (
                f"{rows:,} rows between {pair.upstream} and {pair.downstream} wait for an operator "
                "and have no last_error, by which a further run finds those: it would pass over "
                "them; set it, or settle them"
            )


def ahead_in(tallies: Iterable[Tally]) -> Iterable[str]:
    """Yield sentences for rows with times in the future."""
    found: Counter[Pair] = Counter()
    for tally in tallies:
        found[tally.pair] += tally.ahead
    for pair, rows in found.items():
        if rows:
            whose = (
                f"of {pair.upstream} on {pair.group}"
                if pair.downstream == TOPICS
                else f"between {pair.upstream} and group {pair.group} of {pair.downstream}"
            )
            yield (
                f"{rows:,} rows {whose} ({pair.kind}) have times that have not come yet, and are "
                "not judged before: the clock of a database was ahead when they were written. They "
                "are under rows/ with `ahead`. Set their created_at, received_at and settled_at to "
                "now() where these are later, and run again after the margin"
            )


def ambiguous_in(tallies: Iterable[Tally]) -> Iterable[str]:
    """Yield sentences for groups and topics that may or may not lack rows."""
    absent: Counter[Pair] = Counter()
    unknown: Counter[Pair] = Counter()
    unfounded: Counter[Pair] = Counter()
    again: Counter[Pair] = Counter()
    for tally in tallies:
        if tally.verdict in _DONE:
            again[tally.pair] += tally.ambiguous
            continue
        unknown[tally.pair] += tally.unknown
        unfounded[tally.pair] += tally.arrived - tally.unknown if tally.arrived else 0
        absent[tally.pair] += tally.ambiguous - max(tally.arrived, tally.unknown)
    for pair in dict.fromkeys([*absent, *again]):
        if again[pair]:
            yield _came_again(pair, again[pair])
        if absent[pair]:
            yield (_absent if pair.downstream == TOPICS else _not_received)(pair, absent[pair])
        if unknown[pair]:
            yield _without_row(pair, unknown[pair])
        if unfounded[pair]:
            without_reason = _not_compensated if pair.kind is TxKind.ROLLBACK else _without_reason
            yield without_reason(pair, unfounded[pair])


def _not_received(pair: Pair, rows: int) -> str:
    return (
        f"{rows:,} events of {pair.upstream} were sent more than once, and group {pair.group} of "
        f"{pair.downstream} has no row of them: it has purged the row of the first copy, or it has "
        "received none. They are the rows of this group under rows/ that are `ambiguous`: look for "
        "their effects, and for parked records with `shieldtx dead list --status PARKED`"
    )


def _without_row(pair: Pair, rows: int) -> str:
    if pair.downstream == TOPICS:
        return _record_without_row(pair, rows)
    if pair.kind is TxKind.ROLLBACK:
        return _rollback_without_row(pair, rows)
    return (
        f"{rows:,} events came to group {pair.group} of {pair.downstream} ({pair.kind}) when they "
        f"were older than the retention, and have no row in the outbox of {pair.upstream}: the row "
        "was purged before a run could judge it, as of an event that was received long after it "
        "was sent, or it has never been there. They are the rows of this group under rows/ that "
        "are `ambiguous`: find out who sent them"
    )


def _record_without_row(pair: Pair, rows: int) -> str:
    return (
        f"{rows:,} records on {pair.group} ({pair.kind}) show that their events were written by "
        f"{pair.upstream} before the rows that are kept, and were sent since; they have no row in "
        f"the outbox of {pair.upstream}: the rows were lost, or others sent the records. They are "
        "the rows of this topic under rows/ that are `ambiguous`: find out who sent them"
    )


def _rollback_without_row(pair: Pair, rows: int) -> str:
    return (
        f"{rows:,} rollbacks of {pair.upstream} were older than the retention when group "
        f"{pair.group} of {pair.downstream} received or settled them, and have no row in the "
        f"outbox of {pair.upstream}: the row was purged before a run could judge it, or it has "
        "never been there. They are the rows of this group under rows/ that are `ambiguous`: find "
        "out who sent them, and whether their events were compensated"
    )


def _not_compensated(pair: Pair, rows: int) -> str:
    return (
        f"{rows:,} rollbacks of {pair.upstream} were older than the retention when group "
        f"{pair.group} of {pair.downstream} settled them without a compensation: another rollback "
        "compensated the event, and its row was purged before a run could judge it, or nothing "
        "did. They are the rows of this group under rows/ that are `ambiguous`: see whether the "
        "effects of their events have to be undone"
    )


def _without_reason(pair: Pair, rows: int) -> str:
    return (
        f"{rows:,} events of {pair.upstream} that group {pair.group} of {pair.downstream} has "
        "applied were taken back when they were older than the retention, and no row calls for it: "
        "the reason was purged before a run could judge it, or there was none. They are the rows "
        "of this group under rows/ that are `ambiguous`: see whether the effects have to be undone"
    )


def _came_again(pair: Pair, rows: int) -> str:
    what, did, to_see = (
        ("rollbacks", "compensated", "see whether their events were compensated twice")
        if pair.kind is TxKind.ROLLBACK
        else ("events", "applied", "see whether they were applied twice; REFUSED ones, once before")
    )
    return (
        f"{rows:,} {what} of {pair.upstream} came to group {pair.group} of {pair.downstream} so "
        "long after they can first have been sent that it would have purged an earlier row of "
        f"them: they came for the first time, or the group had {did} them before, and did not know "
        "it any more. They are the rows of this group under rows/ that are `ambiguous` and MATCHED "
        f"or REFUSED: {to_see}"
    )


def _absent(pair: Pair, rows: int) -> str:
    return (
        f"{rows:,} events of {pair.upstream} have no record on {pair.group} ({pair.kind}), and "
        "when the last partition of this topic was added is not known, for it is empty: the "
        "broker has lost their records, or has deleted them by age from the partitions that their "
        "keys had before. They are the rows of this topic under rows/ that are `ambiguous`"
    )


def unread_of(compared: Iterable[Compared]) -> list[Tally]:
    """Return the counts of unread rows: in order by digests, or left of a purged event."""
    return [
        Tally(pair=pair_of(each.route), verdict=verdict, rows=rows)
        for each in compared
        for verdict, rows in ((Verdict.MATCHED, each.clean), (Verdict.TOO_OLD, each.too_old))
        if rows
    ]


def counts_of(tallies: Iterable[Tally]) -> tuple[Count, ...]:
    """Return the sums by pair and verdict, sorted."""
    totals: Counter[tuple[Pair, Verdict]] = Counter()
    for tally in tallies:
        totals[tally.pair, tally.verdict] += tally.rows
    return tuple(
        Count(pair=pair, verdict=verdict, rows=rows)
        for (pair, verdict), rows in sorted(totals.items(), key=_order)
    )


def mismatched_events_in(rows: DataFrame, counts: Iterable[Count]) -> int:
    """Return the number of different events with a mismatch: one event may have several."""
    if not any(count.verdict.is_mismatch for count in counts):
        return 0
    found = rows.where(transforms.is_mismatch())
    return found.select("upstream", "event_id").distinct().count()


def first_rows_of(rows: DataFrame, limit: int) -> tuple[FoundRow, ...]:
    """Return the `limit` earliest rows of each pair's mismatches, in order."""
    found = transforms.first_rows(rows, limit).collect()  # Few rows, so Spark need not sort them.
    by_pair = attrgetter(*transforms.PAIR, "verdict", "number")
    return tuple(_found(row) for row in sorted(found, key=by_pair))


def pair_of(route: Route) -> Pair:
    """Return the pair of a route."""
    stream = route.stream
    return Pair(
        kind=stream.kind,
        upstream=stream.upstream,
        downstream=stream.downstream,
        group=route.group,
    )


def _order(counted: tuple[tuple[Pair, Verdict], int]) -> tuple[str, ...]:
    (pair, verdict), _ = counted
    return (pair.kind, pair.upstream, pair.downstream, pair.group, verdict)


def _pair(row: Row) -> Pair:
    return Pair(
        kind=TxKind(row.kind),
        upstream=row.upstream,
        downstream=row.downstream,
        group=row.consumer_group,
    )


def _found(row: Row) -> FoundRow:
    return FoundRow(
        pair=_pair(row),
        verdict=Verdict[row.verdict],
        event_id=row.event_id,
        topic=row.topic,
        event_type=row.event_type,
        causation_id=row.causation_id,
        upstream_status=_status(OutboxStatus, row.upstream_status),
        downstream_status=_status(InboxStatus, row.downstream_status),
        attempts=row.attempts,
        created_at=_in_utc(row.created_at),
        published_at=_in_utc(row.published_at),
        received_at=_in_utc(row.received_at),
        settled_at=_in_utc(row.settled_at),
        record=row.record,
    )


def _status(status: type[S], value: str | None) -> S | None:
    return None if value is None else status(value)


def _in_utc(when: datetime | None) -> datetime | None:
    """Return the same time in UTC: Spark returns naive times in the machine's zone."""
    return None if when is None else when.astimezone(UTC)
