"""The number and the delays of events by day: computed by the databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.findings import TOPICS, Day, Pair
from shieldtx.reconcile.request import ServiceDatabase

from ..sources import incremental
from ..sources.jdbc import Databases
from ..sources.row_filters import quoted
from .collect import Tally

_DAYS = 31
_SAMPLE = 200_000
"""The number of sampled rows; the counts of larger tables are scaled up."""

_SIZE = """
    SELECT (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '{outbox}'::regclass)
               AS outbox,
           (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '{inbox}'::regclass)
               AS inbox"""
_PUBLISHED = """
    SELECT o.tx_kind, CASE WHEN o.tx_kind = 'ROLLBACK' THEN o.causation_source END AS downstream,
           (o.created_at AT TIME ZONE 'UTC')::date AS day,
           percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (
               ORDER BY extract(epoch FROM o.settled_at - o.created_at) * 1000)::text AS delays
    FROM {outbox} o {sample}
    WHERE o.status = 'PROCESSED' AND o.created_at >= {since} AND o.created_at < {until}
      AND o.settled_at < {until} AND {condition}
    GROUP BY 1, 2, 3"""
_SENT = """
    SELECT o.tx_kind, o.topic, (o.created_at AT TIME ZONE 'UTC')::date AS day, count(*) AS events,
           percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (
               ORDER BY extract(epoch FROM o.settled_at - o.created_at) * 1000)
               FILTER (WHERE o.status = 'PROCESSED' AND o.settled_at < {until})::text AS delays
    FROM {outbox} o {sample}
    WHERE o.source = {name} AND o.created_at >= {since} AND o.created_at < {until} AND {condition}
    GROUP BY 1, 2, 3"""
_RECEIVED = """
    SELECT i.tx_kind, i.source, i.consumer_group,
           (i.event_time AT TIME ZONE 'UTC')::date AS day, count(*) AS events,
           percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (
               ORDER BY extract(epoch FROM i.settled_at - i.event_time) * 1000)
               FILTER (WHERE i.settled_at < {until})::text AS delays
    FROM {inbox} i {sample}
    WHERE i.event_time >= {since} AND i.event_time < {until} AND {condition}
    GROUP BY 1, 2, 3, 4"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The statistics of the last month from the databases."""

    since: date
    days: Mapping[tuple[Pair, date], Day]
    """Without mismatches, which `days_of` adds."""
    published: Mapping[tuple[TxKind, str, str | None, date], tuple[float, ...]]
    """Publishing delays, by kind, service, source of the events that a rollback takes back, and
    day."""


def traffic_of(databases: Databases, *, now: datetime) -> Traffic:
    """Query all databases for their last month, without Spark; of topics where they are read."""
    since = now.astimezone(UTC) - timedelta(days=_DAYS)
    published: dict[tuple[TxKind, str, str | None, date], tuple[float, ...]] = {}
    days: dict[tuple[Pair, date], Day] = {}
    for service in databases.services:
        scale = _sizes(databases, service)
        published.update(_published(databases, service, since, scale["outbox"]))
        for day in _received(databases, service, since, scale["inbox"]):
            days[day.pair, day.day] = day
        if databases.request.broker is not None:
            for day in _sent(databases, service, since, scale["outbox"]):
                days[day.pair, day.day] = day
    return Traffic(since=since.date(), days=days, published=published)


def days_of(traffic: Traffic, tallies: Iterable[Tally]) -> tuple[Day, ...]:
    """Return the last month by pair and day, with the mismatches of each.

    A topic that the run did not judge is left out.
    """
    tallies = list(tallies)
    judged = {tally.pair for tally in tallies}
    days = {
        (pair, day): stats
        for (pair, day), stats in traffic.days.items()
        if pair.downstream != TOPICS or pair in judged
    }
    for day in _mismatched(tallies, traffic.since):
        known = days.get((day.pair, day.day), day)
        events = max(known.events, day.mismatches)
        days[day.pair, day.day] = replace(known, mismatches=day.mismatches, events=events)
    return tuple(
        day if day.pair.downstream == TOPICS else replace(day, publish_ms=_publish_ms(traffic, day))
        for _, day in sorted(days.items(), key=lambda item: _order(item[1]))
    )


def _publish_ms(traffic: Traffic, day: Day) -> tuple[float, ...] | None:
    to = day.pair.downstream if day.pair.kind is TxKind.ROLLBACK else None
    return traffic.published.get((day.pair.kind, day.pair.upstream, to, day.day))


def _published(
    databases: Databases, service: ServiceDatabase, since: datetime, rows: int
) -> Iterable[tuple[tuple[TxKind, str, str | None, date], tuple[float, ...]]]:
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    for row in databases.rows(service, _PUBLISHED, **_given(since, rows, read.condition)):
        yield (TxKind(row.tx_kind), service.name, row.downstream, row.day), _delays(row.delays)


def _received(
    databases: Databases, service: ServiceDatabase, since: datetime, rows: int
) -> Iterable[Day]:
    read = incremental.read_of_inbox(databases.request.selection, service.name)
    names = {each.name for each in databases.services}
    for row in databases.rows(service, _RECEIVED, **_given(since, rows, read.condition)):
        if row.source in names:
            yield Day(
                pair=Pair(
                    kind=TxKind(row.tx_kind),
                    upstream=row.source,
                    downstream=service.name,
                    group=row.consumer_group,
                ),
                day=row.day,
                events=round(row.events / _share(rows)),
                mismatches=0,
                effect_ms=_delays(row.delays) if row.delays else None,
            )


def _sent(
    databases: Databases, service: ServiceDatabase, since: datetime, rows: int
) -> Iterable[Day]:
    """Yield the events of each topic, whatever their status, with their publishing delays."""
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    given = _given(since, rows, read.condition)
    for row in databases.rows(service, _SENT, name=quoted(service.name), **given):
        yield Day(
            pair=Pair(
                kind=TxKind(row.tx_kind), upstream=service.name, downstream=TOPICS, group=row.topic
            ),
            day=row.day,
            events=round(row.events / _share(rows)),
            mismatches=0,
            publish_ms=_delays(row.delays) if row.delays else None,
        )


def _mismatched(tallies: Iterable[Tally], since: date) -> Iterable[Day]:
    found: Counter[tuple[Pair, date]] = Counter()
    for tally in tallies:
        if tally.day is not None and tally.day >= since:
            found[tally.pair, tally.day] += tally.rows
    for (pair, day), mismatches in found.items():
        yield Day(pair=pair, day=day, events=mismatches, mismatches=mismatches)


def _sizes(databases: Databases, service: ServiceDatabase) -> dict[str, int]:
    size = databases.rows(service, _SIZE)[0]
    return {"outbox": size.outbox, "inbox": size.inbox}


def _given(since: datetime, rows: int, condition: str) -> dict[str, str]:
    share = _share(rows)
    # Times may have been set by hand, to `infinity` for example; clocks differ by less than a day.
    until = since + timedelta(days=_DAYS + 1)
    return {
        "since": f"'{since.isoformat()}'::timestamptz",
        "until": f"'{until.isoformat()}'::timestamptz",
        "condition": condition,
        "sample": "" if share == 1 else f"TABLESAMPLE SYSTEM ({share * 100:.6f})",
    }


def _share(rows: int) -> float:
    return min(1.0, _SAMPLE / max(rows, 1))


def _delays(text: str) -> tuple[float, ...]:
    """Parse PostgreSQL's text of an array; negative delays, from differing clocks, become zero."""
    return tuple(max(0.0, float(part)) for part in text.strip("{}").split(",") if part != "NULL")


def _order(day: Day) -> tuple[str, str, str, str, date]:
    pair = day.pair
    return (pair.kind, pair.upstream, pair.downstream, pair.group, day.day)
