"""The demo as a new user runs it: no event is lost, and the incident is found and repaired."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import create_engine, text

from examples.retail.incident import LATE, LEFT, VANISHED
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.reconcile.findings import TOPICS, OutputFolder, from_json
from shieldtx.reconcile.verdicts import Verdict
from tests.acceptance.running_demo import PATIENCE_S, command_of, demo
from tests.conftest import Eventually

pytestmark = pytest.mark.demo

BASKETS = "300"
"""Some baskets order more than the stock has, and half of them come after the kills."""
IN_ALL = int(BASKETS) + LATE


def figure(said: str, name: str) -> str:
    """Return the value of a name in the table of the last audit."""
    found = re.findall(rf"│ {re.escape(name)} +│ +(.+?) +│", said)
    assert found, f"no {name!r} in:\n{said}"
    return str(found[-1])


def verdicts(demo: Path, run: str) -> dict[tuple[str, str, str], int]:
    """Return how many events a reconciliation run counts, by kind, downstream and verdict.

    Records that a killed relay sent twice count as ON_TOPIC, since their number varies.
    """
    folder = OutputFolder(path=demo / "reconciliation" / run)
    counts = from_json(folder.findings.read_bytes()).counts
    found: Counter[tuple[str, str, str]] = Counter()
    for count in counts:
        once = {Verdict.DUPLICATE_RECORDS: Verdict.ON_TOPIC}.get(count.verdict, count.verdict)
        found[count.pair.kind, count.pair.downstream, once] += count.rows
    return dict(found)


def repaired(said: str) -> dict[str, tuple[int, int, int]]:
    """Return how many rows of each verdict the repairs did, found needless, and found changed."""
    rows = re.findall(r"^ *([A-Z_]+) +[a-z ]+? +(\d+) +(\d+) +(\d+) +0 *$", said, re.MULTILINE)
    return {verdict: (int(done), int(needless), int(new)) for verdict, done, needless, new in rows}


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A demo that ran undisturbed, and the folder that holds all its files."""

    folder: Path
    status: int
    said: str
    survivors: list[str]


@pytest.fixture(scope="module")
def finished() -> Iterator[Finished]:
    """One run of the demo."""
    # Not pytest's folder: root's is closed to the account under which PostgreSQL runs then.
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with demo(folder, "--baskets", BASKETS, "--keep") as running:
            status = running.finish()
            survivors = running.survivors()
        yield Finished(folder=folder, status=status, said=running.said, survivors=survivors)


@pytest.mark.timeout(2 * PATIENCE_S)
def test_demo_loses_nothing_when_relay_and_consumer_are_killed(
    finished: Finished,
) -> None:
    said = finished.said
    assert finished.status == 0, said
    assert re.search(r"SIGKILL to orders relay 1 .* and to the stock consumer", said)
    assert re.search(r"its shards were taken over after \d+\.\d s", said)
    assert "take over at once what the dead ones held" in said
    announced = re.search(r"the relay had sent (\d+) events and not marked them", said)
    assert announced, said
    assert int(figure(said, "duplicate records")) >= int(announced[1]) > 0
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


def test_demo_finds_and_repairs_its_planted_faults(finished: Finished) -> None:
    found = verdicts(finished.folder, "found")
    assert {key: rows for key, rows in found.items() if Verdict[key[2]].is_mismatch} == {
        ("COMMIT", "stock", "MISSING_DOWNSTREAM"): VANISHED,
        ("COMMIT", "stock", "STUCK"): LEFT,
        ("COMMIT", TOPICS, "ABSENT_FROM_TOPIC"): VANISHED,
    }
    said = finished.said
    assert "an incident:" in said
    assert re.search(r"outcome +MISMATCHES(.|\n)+repair of run(.|\n)+outcome +CLEAN", said), said
    mended = repaired(said)
    assert mended == {
        "STUCK": (LEFT, 0, 0),
        "MISSING_DOWNSTREAM": (VANISHED, 0, 0),
        "ABSENT_FROM_TOPIC": (VANISHED, 0, 0),
    }


@pytest.mark.timeout(2 * PATIENCE_S)
def test_demo_fails_when_rows_change_outside_of_the_services(finished: Finished) -> None:
    # The orders of one run are enough for both tests: this one runs after all of them are handled.
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
def test_spark_ends_with_the_demo(finished: Finished, eventually: Eventually) -> None:
    with demo(finished.folder, "--again") as running:
        running.await_words(r"\$ shieldtx reconcile")

        def spark_runs() -> bool:
            running.meet()
            return any("SparkSubmit" in command_of(each) for each in running.family.values())

        eventually(spark_runs, "Spark runs", within=PATIENCE_S)
        running.send(signal.SIGKILL)

        assert running.finish() == -signal.SIGKILL
        eventually(lambda: not running.survivors(), f"all its processes are gone: {running.family}")


def sabotage(stock_url: str) -> None:
    """Reserve an order a second time, and delete its inbox row."""
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
