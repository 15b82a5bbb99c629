"""`python -m benchmarks.reconciliation`: the reconciliation and a plain Spark JDBC join."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchmarks.data.reconcile_databases import LOADING, ReconcileDatabases
from benchmarks.data.reconcile_events import Said
from benchmarks.harness.child_process import BUILD
from benchmarks.harness.reconcile_runs import Timed, join, reconcile
from benchmarks.harness.reconcile_sizes import ReconcileSizes, asked_sizes
from benchmarks.harness.samples import BenchmarkFailed
from benchmarks.targets.reconcile import show
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.jars import fetch_jdbc_driver
from shieldtx.reconcile.findings import OutputFolder
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.verdicts import Verdict

Say = Callable[[str], None]

BYTES_A_ROW: Final = 2_500
"""Bytes of outbox and inbox together, with their indexes."""
LOG_WIDTH: Final = 140


@dataclass(kw_only=True, slots=True)
class Stage:
    """The environment of the measured runs, and their results so far."""

    server: EmbeddedPostgres
    folder: Path
    jdbc_jar: Path
    sizes: ReconcileSizes
    say: Say

    def open(self, name: str, rows: int) -> ReconcileDatabases:
        """Create the databases of the given events."""
        books = ReconcileDatabases(self.server, name=name, rows=rows)
        began = time.monotonic()
        books.create(self.say)
        settle()
        self.say(
            f"{rows:,} events on both sides, {books.bytes() / 1e9:.1f} GB, written in "
            f"{time.monotonic() - began:.0f} s"
        )
        return books

    def reconcile(
        self,
        books: ReconcileDatabases,
        name: str,
        selection: Selection = Selection(),  # noqa: B008  a value
    ) -> Timed:
        """Run the reconciliation once."""
        self.say(f"{name}: reconciliation")
        request = books.request(self.folder / "report", jdbc_jar=self.jdbc_jar)
        run = reconcile(replace(request, selection=selection), without=self.server.pid)
        return self._told(name, "reconciliation", run)

    def scan(self, books: ReconcileDatabases, name: str) -> float:
        """Read the tables once without comparing them: the lower bound of a full comparison."""
        self.say(f"{name}: bare scan")
        return books.scan()

    def join(self, books: ReconcileDatabases, name: str) -> Timed:
        """Run the plain join once, and check that it has found all differences that it can find."""
        self.say(f"{name}: plain join")
        request = books.request(self.folder / "join", jdbc_jar=self.jdbc_jar)
        return self._told(name, "plain join", join(request, without=self.server.pid))

    def found(self) -> set[Said]:
        """Return the mismatches of the last reconciliation."""
        rows = pq.read_table(OutputFolder(path=self.folder / "report").rows).to_pylist()
        said = [(row["event_id"], Verdict[row["verdict"]]) for row in rows]
        return {one for one in said if one[1].is_mismatch}

    def _told(self, name: str, what: str, run: Timed) -> Timed:
        self.say(f"{name}: {what}: {run.wall:.1f} s with Spark's start, {run.rss_mb:,.0f} MB")
        return run


@dataclass(kw_only=True, slots=True)
class Rounds:
    """The results of the rounds over the same databases."""

    ours: list[Timed] = field(default_factory=list)
    theirs: list[Timed] = field(default_factory=list)
    scans: list[float] = field(default_factory=list)

    @property
    def start(self) -> float:
        """The median duration of Spark's start and end."""
        return statistics.median(run.wall - run.seconds for run in self.theirs)

    @property
    def seconds(self) -> float:
        """The median duration of the reconciliation without Spark's start."""
        return _wall(self.ours) - self.start

    @property
    def join_seconds(self) -> float:
        """The median duration of the join without Spark's start."""
        return _wall(self.theirs) - self.start


def settle() -> None:
    """Flush the written data to disk, so that the next measurement does not wait for it."""
    os.sync()


def measure(stage: Stage) -> dict[str, float | str]:
    """Measure everything, and return it by name."""
    sizes = stage.sizes
    small = _small(stage)
    books = stage.open("bench", sizes.rows)
    rounds = _rounds(stage, books)
    found, truth = stage.found(), books.line.truth(0, sizes.rows)
    incremental, incremental_quality = _incremental(stage, books)
    ours, theirs = rounds.ours, rounds.theirs
    return {
        "speedup_vs_jdbc_join": rounds.join_seconds / rounds.seconds,
        "rows": sizes.rows,
        "seconds": rounds.seconds,
        "join_seconds": rounds.join_seconds,
        "precision": _part(found & truth, found),
        "recall": _part(found & truth, truth),
        # An incremental run reads only the clocks before Spark starts.
        "incremental_seconds": incremental.seconds,
        "driver_rss_mb": max(run.rss_mb for run in (*ours, incremental)),
        "spark_start_seconds": rounds.start,
        "seconds_with_start": _wall(ours),
        "join_seconds_with_start": _wall(theirs),
        "seconds_with_start_lowest": min(run.wall for run in ours),
        "seconds_with_start_highest": max(run.wall for run in ours),
        "join_seconds_with_start_lowest": min(run.wall for run in theirs),
        "join_seconds_with_start_highest": max(run.wall for run in theirs),
        "join_driver_rss_mb": max(run.rss_mb for run in theirs),
        "bare_scan_seconds": statistics.median(rounds.scans),
        "rounds": sizes.rounds,
        "planted": len(truth),
        "small_rows": sizes.small_rows,
        "small_seconds": small.seconds,
        "small_join_seconds": small.join_seconds,
        "linearity": (rounds.seconds / sizes.rows) / (small.seconds / sizes.small_rows),
        "speedup_of_further_rows": (rounds.join_seconds - small.join_seconds)
        / (rounds.seconds - small.seconds),
        "incremental_rows": sizes.incremental_rows,
        "incremental_seconds_with_start": incremental.wall,
        **incremental_quality,
        "gigabytes": books.bytes() / 1e9,
        "machine_cores": os.cpu_count() or 0,
        "python": platform.python_version(),
    }


def _rounds(stage: Stage, books: ReconcileDatabases) -> Rounds:
    """Run all subjects, alternating."""
    rounds = Rounds()
    turns: list[Callable[[str], None]] = [
        lambda name: rounds.scans.append(stage.scan(books, name)),
        lambda name: rounds.ours.append(stage.reconcile(books, name)),
        lambda name: rounds.theirs.append(stage.join(books, name)),
    ]
    for number, name in enumerate(stage.sizes.turns(books.rows)):
        for turn in turns[:: -1 if number % 2 else 1]:
            turn(name)
    return rounds


def _small(stage: Stage) -> Rounds:
    """Measure only a part of the rows, for the cost of a row there."""
    rows = stage.sizes.small_rows
    books = stage.open("small", rows)
    try:
        rounds = _rounds(stage, books)
        found, truth = stage.found(), books.line.truth(0, rows)
        if found != truth:
            raise BenchmarkFailed(_differences(found, truth))
        return rounds
    finally:
        books.drop()


def _incremental(stage: Stage, books: ReconcileDatabases) -> tuple[Timed, dict[str, float | str]]:
    """Add a day's events, and reconcile only these."""
    old, new = books.rows, stage.sizes.incremental_rows
    stage.say(f"writing {new:,} further events")
    books.extend(new)
    settle()
    since = dict.fromkeys(("orders", "stock"), books.line.written_at(old))
    run = stage.reconcile(books, f"{new:,} new rows", Selection(moved_since=since))
    found = stage.found()
    truth, ever = books.line.truth(old, old + new), books.line.truth(0, old + new)
    return run, {
        "incremental_precision": _part(found & ever, found),
        "incremental_recall": _part(found & truth, truth),
    }


def _wall(runs: Sequence[Timed]) -> float:
    return statistics.median(run.wall for run in runs)


def _part(part: Collection[Said], whole: Collection[Said]) -> float:
    return len(part) / len(whole) if whole else 1.0


def _differences(found: set[Said], truth: set[Said]) -> str:
    return (
        f"{len(found - truth)} of {len(found)} mismatches are wrong, such as "
        f"{sorted(found - truth)[:3]}; {len(truth - found)} of {len(truth)} were not found, such "
        f"as {sorted(truth - found)[:3]}"
    )


def main() -> int:
    """Measure; the exit status is 1 if the results differ from the planted mistakes."""
    sizes = asked_sizes()
    began = time.monotonic()
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_WIDTH)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting PostgreSQL", total=None)

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"{time.monotonic() - began:5.0f} s  {text}", highlight=False)

        try:
            figures = _measure(sizes, say)
        except BenchmarkFailed as failure:
            console.print("[red]failed:[/]", Text(str(failure)))
            return 1
    BUILD.mkdir(parents=True, exist_ok=True)
    rounded = {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in figures.items()
    }
    (BUILD / "bench-reconcile.json").write_text(json.dumps(rounded, indent=2) + "\n")
    show(console, figures)
    parts = ("precision", "recall", "incremental_precision", "incremental_recall")
    return 0 if all(figures[name] == 1 for name in parts) else 1


def _measure(sizes: ReconcileSizes, say: Say) -> dict[str, float | str]:
    needed = (sizes.rows + sizes.incremental_rows) * BYTES_A_ROW
    place = Path(tempfile.gettempdir())
    if shutil.disk_usage(place).free < needed:
        raise BenchmarkFailed(
            f"{needed / 1e9:.0f} GB are needed in {place}, and it has less free: set TMPDIR "
            "to another folder, or ask for fewer --rows"
        )
    jar = fetch_jdbc_driver(progress=say)
    with (
        EmbeddedPostgres(fsync=False, settings=LOADING) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        stage = Stage(server=server, folder=Path(folder), jdbc_jar=jar, sizes=sizes, say=say)
        return measure(stage)


if __name__ == "__main__":
    sys.exit(main())
