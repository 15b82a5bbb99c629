"""The examples as a newcomer runs them: as programs, with signals really sent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from sqlalchemy import create_engine, text

from examples.retail.mishap import LATE, LEFT, VANISHED
from examples.retail.stage import PROJECT
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.reconcile.findings import TOPICS, OutputFolder, from_json
from shieldtx.reconcile.verdicts import Verdict
from tests.conftest import Eventually

PATIENCE_S = 480.0
"""For a demo of a few hundred baskets, Spark included, on a machine that has other things to do."""
BASKETS = "150"
"""Some of which ask for more than there is left, and half of which come after the kills."""
IN_ALL = int(BASKETS) + LATE


def test_the_smallest_example_reserves_what_is_there_and_takes_the_rest_back() -> None:
    example = PROJECT / "examples" / "smallest.py"

    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.splitlines() == [
        "shop:      Ada orders a lamp (order 1)",
        "shop:      Bo orders a lamp (order 2)",
        "shop:      Cleo orders a lamp (order 3)",
        "warehouse: order 1 is reserved",
        "warehouse: order 2 is reserved",
        "shop:      order 3 came back and is cancelled",
    ]
    assert "Refused: no lamp left" in done.stderr
    assert len(example.read_text().splitlines()) < 80


class Demo:
    """A running demo: what it has said, and every process that it has started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._popen = subprocess.Popen(
            [sys.executable, "-u", "-m", "examples.retail", "--folder", folder, *arguments],
            cwd=PROJECT,
            env={**os.environ, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.family: dict[int, psutil.Process] = {}

    @property
    def said(self) -> str:
        return "\n".join(self._lines)

    def await_words(self, pattern: str) -> str:
        """Wait until it says something, and meet its processes meanwhile; return what it said."""
        with self._changed:
            deadline = time.monotonic() + PATIENCE_S
            while not (found := re.search(pattern, self.said)):
                self.meet()
                if self._popen.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"it never said {pattern!r}:\n{self.said}")
                self._changed.wait(0.2)
        self.meet()
        return found.group()

    def finish(self) -> int:
        """Wait for its end; return its exit status."""
        deadline = time.monotonic() + PATIENCE_S
        while self._popen.poll() is None:
            self.meet()
            if time.monotonic() > deadline:
                pytest.fail(f"it does not end:\n{self.said}")
            time.sleep(0.1)
        self._reader.join()
        return self._popen.returncode

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def survivors(self) -> list[str]:
        """Its processes that still run."""
        return [
            f"{pid} {command}"
            for pid, process in self.family.items()
            if (command := command_of(process))
        ]

    def end(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()

    def meet(self) -> None:
        """Note which processes it has started by now."""
        try:
            for process in psutil.Process(self._popen.pid).children(recursive=True):
                self.family.setdefault(process.pid, process)
        except psutil.NoSuchProcess:
            return

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()


def command_of(process: psutil.Process) -> str:
    """The command line of a process; empty when it runs no more."""
    try:
        return " ".join(process.cmdline()) if process.is_running() else ""
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    running = Demo(folder, *arguments)
    try:
        yield running
    finally:
        running.end()


def figure(said: str, name: str) -> str:
    """What the last audit's table says beside a name."""
    found = re.findall(rf"│ {re.escape(name)} +│ +(.+?) +│", said)
    assert found, f"no {name!r} in:\n{said}"
    return str(found[-1])


def verdicts(demo: Path, run: str) -> dict[tuple[str, str, str], int]:
    """How many events a run of the reconciliation counts, by kind, other side and verdict.

    Without those that may or may not be: records that a killed relay has sent twice.
    """
    folder = OutputFolder(path=demo / "reconciliation" / run)
    counts = from_json(folder.findings.read_bytes()).counts
    found: Counter[tuple[str, str, str]] = Counter()
    for count in counts:
        once = {Verdict.DUPLICATE_RECORDS: Verdict.ON_TOPIC}.get(count.verdict, count.verdict)
        found[count.pair.kind, count.pair.downstream, once] += count.rows
    return dict(found)


def repaired(said: str) -> dict[str, tuple[int, int, int]]:
    """How many rows of each verdict the repair has done, found needless, and found changed."""
    rows = re.findall(r"^ *([A-Z_]+) +[a-z ]+? +(\d+) +(\d+) +(\d+) *$", said, re.MULTILINE)
    return {verdict: (int(done), int(needless), int(new)) for verdict, done, needless, new in rows}


def test_without_java_the_demo_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "examples.retail", "--folder", tmp_path],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert re.fullmatch(r"the demo broke off: Java is not installed: install .*\n", done.stdout)
    assert done.stderr == ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A demo that was left to itself, and the folder in which it has kept everything."""

    folder: Path
    status: int
    said: str
    survivors: list[str]


@pytest.fixture(scope="module")
def finished() -> Iterator[Finished]:
    """One run of the demo."""
    # Not pytest's: root's is closed to the account that PostgreSQL then runs as.
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with demo(folder, "--baskets", BASKETS, "--keep") as running:
            status = running.finish()
            survivors = running.survivors()
        yield Finished(folder=folder, status=status, said=running.said, survivors=survivors)


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_demo_loses_nothing_although_a_relay_and_a_consumer_are_killed(
    finished: Finished,
) -> None:
    said = finished.said
    assert finished.status == 0, said
    assert re.search(r"SIGKILL to orders relay 1 .* and to the stock consumer", said)
    assert re.search(r"its shards were taken over after \d+\.\d s", said)
    assert figure(said, "placed") == str(IN_ALL)
    for name in ("lost", "double", "order inversions", "never placed", "parked"):
        assert figure(said, name) == "0", said
    assert figure(said, "accounts that do not balance") == "0"
    assert figure(said, "products that do not balance") == "0"
    effects = int(figure(said, "effects (reservations)"))
    compensations = int(figure(said, "compensations (refunds)"))
    assert effects + compensations == IN_ALL
    assert compensations > 0
    assert verdicts(finished.folder, "repaired") == {
        ("COMMIT", "stock", "MATCHED"): effects,
        ("COMMIT", "stock", "REFUSED"): compensations,
        ("COMMIT", TOPICS, "ON_TOPIC"): IN_ALL,
        ("ROLLBACK", "orders", "MATCHED"): compensations,
        ("ROLLBACK", TOPICS, "ON_TOPIC"): compensations,
    }
    for run in ("found", "repaired"):
        report = finished.folder / "reconciliation" / run / "report.html"
        assert str(report) in said
        assert report.is_file()
    assert not finished.survivors


def test_the_demo_finds_and_repairs_what_it_has_planted(finished: Finished) -> None:
    found = verdicts(finished.folder, "found")
    assert {key: rows for key, rows in found.items() if Verdict(key[2]).is_mismatch} == {
        ("COMMIT", "stock", "MISSING_DOWNSTREAM"): VANISHED,
        ("COMMIT", "stock", "STUCK"): LEFT,
        ("COMMIT", TOPICS, "ABSENT_FROM_TOPIC"): VANISHED,
    }
    said = finished.said
    assert "a mishap:" in said
    assert re.search(r"outcome +MISMATCHES(.|\n)+repair of run(.|\n)+outcome +CLEAN", said), said
    mended = repaired(said)
    assert mended["STUCK"] == (LEFT, 0, 0)
    # What one verdict has put back in line, the other need not.
    both = zip(mended["MISSING_DOWNSTREAM"], mended["ABSENT_FROM_TOPIC"], strict=True)
    assert [sum(pair) for pair in both] == [VANISHED, VANISHED, 0]


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_demo_fails_loudly_when_rows_change_behind_its_back(finished: Finished) -> None:
    # The orders of one run are enough for both tests: this one comes in when they are through.
    with EmbeddedPostgres(finished.folder / "postgres") as server:
        sabotage(server.url("stock"))

    with demo(finished.folder, "--again") as running:
        status = running.finish()
        said = running.said

    assert status == 1, said
    assert figure(said, "placed") == str(IN_ALL)
    assert figure(said, "double") == "1"
    assert "WRONG: effects that were doubled: 1" in said
    assert verdicts(finished.folder, "again")["COMMIT", "stock", "MISSING_DOWNSTREAM"] == 1
    assert "WRONG: the reconciliation ended with MISMATCHES" in said
    assert "Nothing lost" not in said


@pytest.mark.timeout(2 * PATIENCE_S)
def test_spark_does_not_outlive_the_demo(finished: Finished, eventually: Eventually) -> None:
    with demo(finished.folder, "--again") as running:
        running.await_words(r"\$ shieldtx reconcile")

        def spark_runs() -> bool:
            running.meet()
            return any("SparkSubmit" in command_of(each) for each in running.family.values())

        eventually(spark_runs, "Spark runs", within=PATIENCE_S)
        running.send(signal.SIGKILL)

        assert running.finish() == -signal.SIGKILL
        eventually(lambda: not running.survivors(), f"all its processes are gone: {running.family}")


def test_an_audit_of_nothing_is_refused(tmp_path: Path) -> None:
    with demo(tmp_path, "--again") as running:
        assert running.finish() == 2
    assert "holds nothing that a run with --keep has left" in running.said


def sabotage(stock_url: str) -> None:
    """Reserve an order a second time, and forget that it was ever received."""
    engine = create_engine(stock_url)
    with engine.begin() as connection:
        basket = connection.scalars(
            text(
                "INSERT INTO reservation (basket_id, household_id, number) "
                "SELECT basket_id, household_id, number FROM reservation LIMIT 1 "
                "RETURNING basket_id"
            )
        ).one()
        connection.execute(
            text("DELETE FROM shield_inbox WHERE biz_key = :basket"), {"basket": str(basket)}
        )
    engine.dispose()


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize(
    ("number", "moment", "status"),
    [
        pytest.param(signal.SIGTERM, "PostgreSQL is up", 143, id="SIGTERM at the start"),
        pytest.param(signal.SIGINT, "applied [1-9]", 130, id="Ctrl-C while the services work"),
        pytest.param(signal.SIGKILL, "applied [1-9]", -9, id="SIGKILL while the services work"),
    ],
)
def test_no_process_outlives_the_demo(
    number: signal.Signals, moment: str, status: int, tmp_path: Path, eventually: Eventually
) -> None:
    with demo(tmp_path, "--baskets", "60") as running:
        running.await_words(moment)
        running.send(number)

        assert running.finish() == status
        assert len(running.family) >= 2
        eventually(lambda: not running.survivors(), f"all its processes are gone: {running.family}")
