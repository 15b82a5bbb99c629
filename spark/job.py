"""One run: reads, compares, writes. Every decision in it is made elsewhere."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TypeVar

from pyspark.sql import DataFrame, Row, SparkSession

from shieldtx.reconcile import report
from shieldtx.reconcile.expectations import Expectation, expectation_of
from shieldtx.reconcile.findings import (
    Bounds,
    Count,
    Findings,
    FoundRow,
    OutputFolder,
    Pair,
)
from shieldtx.reconcile.request import Flow, ReconcileRequest
from shieldtx.reconcile.rules import Verdict
from shieldtx.reconcile.window import Window, window_of
from shieldtx.states import InboxStatus, OutboxStatus, TxKind

from . import sources, transforms

S = TypeVar("S", OutboxStatus, InboxStatus)


def run(spark: SparkSession, request: ReconcileRequest) -> Findings:
    """Compare two services in both directions and leave the findings in the request's folder."""
    started, began = datetime.now(UTC), time.monotonic()
    # Before any row: what the watermark promises, it promises for reads that come after it.
    clocks = [sources.clock(spark, s) for s in (request.upstream, request.downstream)]
    window = window_of(clocks, margin=request.margin)
    rows, bounds = _compared(spark, request, window)
    rows.persist()
    folder = OutputFolder(path=request.folder)
    counts = transforms.counted(rows).persist()
    counts.coalesce(1).write.mode("overwrite").parquet(str(folder.summary))
    transforms.listed(rows).coalesce(1).write.mode("overwrite").parquet(str(folder.rows))
    first = transforms.first_rows(rows, request.first_rows).collect()
    findings = Findings(
        started_at=started,
        seconds=round(time.monotonic() - began, 3),
        margin=request.margin,
        bounds=bounds,
        counts=tuple(_count(row) for row in counts.orderBy(*transforms.PAIR, "verdict").collect()),
        first_rows=tuple(_found(row) for row in first),
    )
    report.write(findings, folder)
    return findings


def _compared(
    spark: SparkSession, request: ReconcileRequest, window: Window
) -> tuple[DataFrame, tuple[Bounds, ...]]:
    commit, rollback = request.flows
    # Both are read for their own sake and as the answers to the other rows; they are few.
    rollback_outbox = sources.outbox(spark, rollback).persist()
    rollback_inbox = sources.inbox(spark, rollback).persist()
    expected = {flow.kind: _expectation(spark, request, flow) for flow in request.flows}
    windows = {kind: window.unless(found.obstacle) for kind, found in expected.items()}
    forth = transforms.compared(
        sources.outbox(spark, commit),
        sources.inbox(spark, commit),
        transforms.rollbacks_of(rollback_outbox),
        flow=commit,
        expectation=expected[commit.kind],
        window=windows[commit.kind],
    )
    back = transforms.compared(
        rollback_outbox,
        rollback_inbox,
        transforms.compensations(rollback_inbox),
        flow=rollback,
        expectation=expected[rollback.kind],
        window=windows[rollback.kind],
    )
    bounds = tuple(
        Bounds(
            kind=flow.kind,
            upstream=flow.upstream.name,
            downstream=flow.downstream.name,
            window=windows[flow.kind],
        )
        for flow in request.flows
    )
    return forth.unionByName(back), bounds


def _expectation(spark: SparkSession, request: ReconcileRequest, flow: Flow) -> Expectation:
    return expectation_of(
        flow.kind,
        request.groups,
        sent=sources.types_sent(spark, flow),
        received=sources.types_received(spark, flow),
    )


def _pair(row: Row) -> Pair:
    return Pair(
        kind=TxKind(row.kind),
        upstream=row.upstream,
        downstream=row.downstream,
        group=row.consumer_group,
    )


def _count(row: Row) -> Count:
    return Count(pair=_pair(row), verdict=Verdict[row.verdict], rows=row.rows)


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
        created_at=_in_utc(row.created_at),
        received_at=_in_utc(row.received_at),
    )


def _status(status: type[S], value: str | None) -> S | None:
    return None if value is None else status(value)


def _in_utc(when: datetime | None) -> datetime | None:
    """Spark hands out times of the machine's zone, without saying so."""
    return None if when is None else when.astimezone(UTC)
