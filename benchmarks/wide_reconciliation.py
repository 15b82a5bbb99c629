"""`python -m benchmarks.wide_reconciliation`: runs with very many mismatches, or very wide rows.

Three pairs of an outbox and an inbox: all payloads differ; payloads of a megabyte, of which some
differ and are shown; events that the outbox has purged and the inbox still has. The output is time,
memory, and the result of the run: a page that a browser can open, and all the rows in Parquet.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from benchmarks.data.reconcile_databases import LOADING
from benchmarks.harness.reconcile_runs import Timed, reconcile
from benchmarks.harness.samples import BenchmarkFailed
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.jars import fetch_jdbc_driver
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import OutputFolder, from_json
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.schema import Schema

LARGEST_PAGE: Final = 5_000_000
"""Maximum bytes of report.html and of summary.json."""
MOST_MEMORY_MB: Final = 2_048
"""Maximum memory of the job, its Java and its Python, as in the benchmark of the reconciliation."""
CHUNK: Final = 50_000
OUTBOX_KEPT, INBOX_KEPT = timedelta(days=7), timedelta(days=14)

# Ids that sort by the time of their writing, like the library's; equal on both sides.
_ID: Final = """(lpad(to_hex(%(begin_ms)s::bigint + n), 12, '0') || '7' ||
    lpad(to_hex(n %% 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid"""
_AGE: Final = "now() - %(days)s * interval '1 day'"
_OUTBOX: Final = f"""
    INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, key,
        payload, status, waiting, holds_key, due_at, unconfirmed, created_at, settled_at)
    SELECT {_ID}, 0, 'orders', 'orders.placed', 'orders.placed', 'COMMIT', 'INSERT',
           'k' || n %% 1000, %(payload)s, 'PROCESSED', false, false, {_AGE}, false, {_AGE}, {_AGE}
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"""  # noqa: S608  parts of this module
_INBOX: Final = f"""
    INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type, tx_kind,
        operation, key, payload, event_time, status, due_at, received_at, settled_at)
    SELECT {_ID}, 'reserve', 'orders', 'orders.placed', 'orders.placed', 'COMMIT', 'INSERT',
           'k' || n %% 1000, %(payload)s, {_AGE}, 'PROCESSED', {_AGE}, {_AGE}, {_AGE}
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"""  # noqa: S608  parts of this module
_BEGIN_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one table, from one number up to before another."""

    table: str
    first: int
    end: int
    payload: str
    days: float = 1.0
    """Age of the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The written rows, and the expected count of one verdict."""

    title: str
    rows: Sequence[Rows]
    verdict: Verdict
    number: int
    request: dict[str, Any]


def cases(asked: argparse.Namespace) -> list[Case]:
    """Return the three pairs."""
    mismatches, wide, purged = asked.mismatches, asked.wide, asked.purged
    large = "x" * 1_000_000
    return [
        Case(
            title=f"{mismatches:,} mismatches",
            rows=[
                Rows(table=_OUTBOX, first=0, end=mismatches, payload='{"a":1}'),
                Rows(table=_INBOX, first=0, end=mismatches, payload='{"a": 1}'),
            ],
            verdict=Verdict.PAYLOAD_DIFFERS,
            number=mismatches,
            request={"first_rows": 1_000},
        ),
        Case(
            title=f"{wide:,} payloads of 1 MB, every second one differs",
            rows=[
                Rows(table=_OUTBOX, first=0, end=wide, payload=large),
                Rows(table=_INBOX, first=0, end=wide // 2, payload=large[:-1] + "y"),
                Rows(table=_INBOX, first=wide // 2, end=wide, payload=large),
            ],
            verdict=Verdict.PAYLOAD_DIFFERS,
            number=wide // 2,
            request={"first_rows": 1_000, "show_payloads": True},
        ),
        Case(
            title=f"{purged:,} events that the outbox has purged, {purged:,} on both sides",
            rows=[
                Rows(table=_INBOX, first=0, end=purged, payload='{"a":1}', days=10),
                Rows(table=_INBOX, first=purged, end=2 * purged, payload='{"a":1}'),
                Rows(table=_OUTBOX, first=purged, end=2 * purged, payload='{"a":1}'),
            ],
            verdict=Verdict.TOO_OLD,
            number=purged,
            request={},
        ),
    ]


def measure(server: EmbeddedPostgres, case: Case, number: int, jar: Path) -> tuple[str, ...]:
    """Write a case, run, and return the cells to print."""
    urls = {service: _database(server, f"{service}_{number}") for service in ("orders", "stock")}
    for rows in case.rows:
        _write(urls["orders" if rows.table is _OUTBOX else "stock"], rows)
    for url in urls.values():
        with _connected(url) as connection:
            connection.execute("VACUUM (FREEZE, ANALYZE)")
    with tempfile.TemporaryDirectory() as folder:
        out = OutputFolder(path=Path(folder))
        request = replace(_request(urls, out.path, jar), **case.request)
        run = reconcile(request, without=server.pid)
        return _checked(case, run, out)


def _request(urls: dict[str, str], folder: Path, jar: Path) -> ReconcileRequest:
    groups = (ExpectedGroup(name="reserve", topics=("orders.placed",)),)
    return ReconcileRequest(
        services=(
            ServiceDatabase(name="orders", url=urls["orders"], retention=OUTBOX_KEPT),
            ServiceDatabase(name="stock", url=urls["stock"], groups=groups, retention=INBOX_KEPT),
        ),
        folder=folder,
        jdbc_jar=jar,
    )


def _checked(case: Case, run: Timed, out: OutputFolder) -> tuple[str, ...]:
    """Raise BenchmarkFailed if the verdicts are wrong, or files or memory are too large."""
    totals = from_json(out.findings.read_bytes()).totals
    if totals.get(case.verdict) != case.number:
        raise BenchmarkFailed(f"{case.title}: of {case.number:,} {case.verdict} {totals}")
    page = max(out.page.stat().st_size, out.findings.stat().st_size)
    listed = pq.read_table(out.rows, columns=["verdict"]).num_rows
    parquet = sum(file.stat().st_size for file in out.rows.glob("*.parquet"))
    if page > LARGEST_PAGE or run.rss_mb > MOST_MEMORY_MB:
        raise BenchmarkFailed(f"{case.title}: {page:,} bytes of a page, {run.rss_mb:,.0f} MB")
    return (
        case.title,
        f"{run.wall:.1f} s",
        f"{run.rss_mb:,.0f} MB",
        f"{page / 1e6:.2f} MB",
        f"{listed:,}",
        f"{parquet / 1e6:.1f} MB",
    )


def _database(server: EmbeddedPostgres, name: str) -> str:
    server.create_database(name)
    url = server.url(name)
    Schema(create_engine(url, poolclass=NullPool)).upgrade()
    return url


def _connected(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def _write(url: str, rows: Rows) -> None:
    with _connected(url) as connection:
        for first in range(rows.first, rows.end, CHUNK):
            last = min(first + CHUNK, rows.end) - 1
            bounds = {"first": first, "last": last, "begin_ms": _BEGIN_MS}
            given = bounds | {"payload": rows.payload, "days": rows.days}
            connection.execute(rows.table.encode(), given)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m benchmarks.wide_reconciliation"
    )
    parser.add_argument("--mismatches", type=int, default=300_000)
    parser.add_argument("--wide", type=int, default=1_000, help="events of a megabyte")
    parser.add_argument("--purged", type=int, default=500_000)
    asked = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 140)
    headings = ("case", "run", "memory", "page", "rows listed", "Parquet")
    table = Table(*headings)
    jar = fetch_jdbc_driver()
    with EmbeddedPostgres(fsync=False, settings=LOADING) as server:
        for number, case in enumerate(cases(asked)):
            with console.status(case.title):
                table.add_row(*measure(server, case, number, jar))
    console.print(table)


if __name__ == "__main__":
    main()
