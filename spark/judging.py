"""Reads the planned rows, and judges pairs of rows, and rows with their topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame

from shieldtx.reconcile.expectations import Expectation, Received, Sent, Stream
from shieldtx.reconcile.observed import ObservedTopics
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.window import Clock, Window, window_of

from .compare import topic_plan, transforms
from .compare.read_plan import Plan, PlannedReads, planned_reads
from .progress import report_progress
from .results.collect import Tally, tallies_of
from .sources import outbox_inbox, topics
from .sources.driver_frames import union_of, windows_frame
from .sources.jdbc import Databases


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicComparison:
    """The result of the comparison of outboxes with topics."""

    rows: tuple[DataFrame, ...] = ()
    left_out: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    observed: ObservedTopics = field(default_factory=ObservedTopics)
    sent: frozenset[Sent] = frozenset()
    """The types of the events in the outboxes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The result of reading and judging."""

    expectation: Expectation
    received: frozenset[Received]
    """The receipts of groups, as far as the run has seen them."""
    windows: Mapping[Stream, Window]
    rows: DataFrame
    """Judged rows, persisted by Spark."""
    tallies: Sequence[Tally]
    topic_comparison: TopicComparison


def judged(databases: Databases, plan: Plan, clocks: Mapping[str, Clock]) -> Judged:
    """Read the planned rows, and judge them by these clocks."""
    if databases.request.broker is not None:
        report_progress("reading topics")
    topic_comparison = _topic_comparison(databases, plan, clocks)
    report_progress("reading rows")
    reads = planned_reads(databases, plan)
    windows = windows_of(reads.expectation.streams, clocks, databases.request)
    rows = union_of([_judged_pairs(databases, reads, windows), *topic_comparison.rows]).persist()
    report_progress("judging, and writing the rows that are not in order")
    return Judged(
        expectation=reads.expectation,
        received=reads.received,
        windows=windows,
        rows=rows,
        tallies=tallies_of(rows),
        topic_comparison=topic_comparison,
    )


def _topic_comparison(
    databases: Databases, plan: Plan, clocks: Mapping[str, Clock]
) -> TopicComparison:
    """Return the comparison of outboxes with topics; empty if no broker is configured."""
    request = databases.request
    if request.broker is None:
        return TopicComparison()
    types = plan.sent
    if types is None:
        types = frozenset(
            t for s in databases.services for t in outbox_inbox.types_sent(databases, s)
        )
    sent = {(each.topic, each.kind) for each in types}
    reading = topics.read(databases.spark, request, sent)
    if reading.records is None:
        return TopicComparison(
            left_out=reading.left_out,
            obstacles=reading.obstacles,
            observed=reading.observed,
            sent=types,
        )
    rows = topic_plan.judged(databases, reading.records, reading.horizons, clocks)
    return TopicComparison(
        rows=(rows,),
        left_out=reading.left_out,
        obstacles=reading.obstacles,
        observed=reading.observed,
        sent=types,
    )


def _judged_pairs(
    databases: Databases, reads: PlannedReads, windows: Mapping[Stream, Window]
) -> DataFrame:
    pairs = transforms.with_rollbacks(
        transforms.within(reads.pairs, databases.request.selection),
        union_of(outbox_inbox.rollbacks(databases, service) for service in databases.services),
        union_of(outbox_inbox.compensations(databases, service) for service in databases.services),
    )
    frame = windows_frame(databases.spark, windows, databases.memories)
    return transforms.judged(pairs, frame)


def windows_of(
    streams: Iterable[Stream], clocks: Mapping[str, Clock], request: ReconcileRequest
) -> Mapping[Stream, Window]:
    """Return the window of each of these streams."""
    return {
        stream: window_of(
            [clocks[name] for name in dict.fromkeys((stream.upstream, stream.downstream))],
            margin=request.margin,
        )
        for stream in dict.fromkeys(streams)
    }


def windows_alone(
    windows: Mapping[Stream, Window], clocks: Mapping[str, Clock], request: ReconcileRequest
) -> Mapping[str, Window]:
    """Return the window of each service without a stream, by its own clock."""
    busy = {name for stream in windows for name in (stream.upstream, stream.downstream)}
    return {
        name: window_of([clock], margin=request.margin)
        for name, clock in clocks.items()
        if name not in busy
    }


def idle_of(
    windows: Mapping[Stream, Window], clocks: Mapping[str, Clock], request: ReconcileRequest
) -> Mapping[str, datetime]:
    """Return the watermark of each service without a stream.

    No row of such a service has changed since the last good run. Without a watermark, the next run
    would read all its rows.
    """
    own = windows_alone(windows, clocks, request)
    return {name: window.watermark for name, window in own.items() if window.watermark is not None}
