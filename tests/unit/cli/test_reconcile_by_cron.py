"""`shieldtx reconcile --cron`: the configuration of each night's run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shieldtx.cli import reconcile
from shieldtx.cli.program import program
from shieldtx.domain.states import TxKind
from shieldtx.errors import AlreadyRunning, ConfigurationError, NameTaken
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import Count, Findings, OutputFolder, Pair, RunOutcome
from shieldtx.reconcile.spark_launcher import ReconcileRequest, ReconcileResult
from shieldtx.reconcile.verdicts import Verdict

FILE = '{margin}[services.orders]\nurl = "ORDERS_URL"\nretention = "P{days}D"\n'
PROBLEM = "Spark's job ended with status 1. The end of spark.log:\n  a line of Spark"
PAIR = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="stock")


def findings(*, missing: int = 0, obstacles: tuple[str, ...] = ()) -> Findings:
    return Findings(
        started_at=datetime(2026, 1, 31, 2, tzinfo=UTC),
        seconds=1,
        margin=timedelta(minutes=15),
        bounds=(),
        counts=(
            Count(pair=PAIR, verdict=Verdict.MATCHED, rows=5),
            Count(pair=PAIR, verdict=Verdict.MISSING_DOWNSTREAM, rows=missing),
        )[: 2 if missing else 1],
        first_rows=(),
        obstacles=obstacles,
    )


class Nights:
    """A configuration file, and the requests of the nightly runs."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "reconcile.toml"
        self.out = folder / "nights"
        self.asked: list[ReconcileRequest] = []
        self.error: Exception | None = None
        self.findings: Findings | None = findings()
        self.write()

    def write(self, *, days: int = 7, margin: str = "") -> None:
        self.config.write_text(FILE.format(days=days, margin=margin))

    def one(
        self, _: Configuration, request: ReconcileRequest, *__: object, **___: object
    ) -> ReconcileResult:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        (request.folder / "report.html").touch()
        return ReconcileResult(
            outcome=RunOutcome.ERROR if self.findings is None else self.findings.outcome,
            findings=self.findings,
            problem=PROBLEM if self.findings is None else "",
            folder=OutputFolder(path=request.folder),
            run_id="r1",
        )

    def start(self, nights: Callable[[Callable[[], None]], None], *options: str) -> str:
        """Start the command; `nights` calls its argument once for each night.

        Returns the log.
        """

        def by_crontab(_: str, run: Callable[[], None], *, configuration: str) -> int:
            assert configuration == "reconcile"
            nights(run)
            return 0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reconcile, "run_by_crontab", by_crontab)
            patch.setattr(reconcile, "_run", self.one)
            words = ["--config", str(self.config), "--out", str(self.out), "--cron", "0 2 * * *"]
            result = CliRunner().invoke(
                program,
                ["reconcile", *words, *options],
                env={"ORDERS_URL": "postgresql+psycopg://ann:x@127.0.0.1/orders"},
                catch_exceptions=False,
            )
        assert result.exit_code == 0, result.output
        return result.stderr


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_corrected_file_applies_from_the_next_night_on(nights: Nights):
    def three(run: Callable[[], None]) -> None:
        run()
        nights.write(days=3, margin='margin = "PT1M"\n')
        run()
        nights.config.unlink()
        with pytest.raises(ConfigurationError, match="cannot be read"):
            run()

    nights.start(three)

    first, second = nights.asked
    assert [r.services[0].retention for r in (first, second)] == [
        timedelta(days=7),
        timedelta(days=3),
    ]
    assert (first.margin, second.margin) == (timedelta(minutes=15), timedelta(minutes=1))


def test_command_line_options_apply_every_night(nights: Nights):
    def two(run: Callable[[], None]) -> None:
        run()
        nights.write(margin='margin = "PT1M"\n')
        run()

    nights.start(two, "--margin", "60", "--rows", "7", "--no-push-down", "--master", "local[1]")

    assert [
        (r.margin, r.first_rows, r.push_down, r.master, r.show_payloads) for r in nights.asked
    ] == [(timedelta(seconds=60), 7, False, "local[1]", False)] * 2


def test_each_night_has_a_folder_unless_another_run_is_active(nights: Nights):
    def three(run: Callable[[], None]) -> None:
        run()
        run()
        nights.error = AlreadyRunning("run r1 of ann@host is at work")
        run()

    nights.start(three)

    first, second, third = (request.folder for request in nights.asked)
    assert len({first, second, third}) == 3
    assert set(nights.out.iterdir()) == {first, second}


@pytest.mark.parametrize(
    ("found", "level", "fields"),
    [
        (findings(), "INFO", "action=reconciliation_ended"),
        (findings(missing=3), "ERROR", "action=reconciliation_needs_operator count=3"),
        (findings(obstacles=("a", "b")), "WARNING", "action=reconciliation_not_judged count=2"),
        (None, "ERROR", "action=reconciliation_needs_operator error="),
    ],
    ids=["clean", "mismatches", "not judged", "error"],
)
def test_outcome_of_a_night_sets_level_and_action(
    nights: Nights, found: Findings | None, level: str, fields: str
):
    nights.findings = found

    (record,) = nights.start(lambda run: run()).splitlines()

    assert f" {level} " in record
    assert all(f" {field}" in record for field in fields.split())
    (request,) = nights.asked
    for field in ("run_id=r1", "configuration=reconcile", f"folder={request.folder}"):
        assert f" {field} " in f"{record} "
    assert "a line of Spark" not in record


@pytest.mark.parametrize(
    ("error", "level", "action"),
    [
        (AlreadyRunning, "INFO", "reconciliation_elsewhere"),
        (NameTaken, "ERROR", "reconciliation_refused"),
    ],
    ids=["same", "namesake"],
)
def test_skipped_night_is_logged(
    nights: Nights, error: type[AlreadyRunning], level: str, action: str
):
    """INFO where the same run is in progress elsewhere; ERROR where the name is taken."""
    nights.error = error("run r1 of ann@host is at work")

    (said,) = nights.start(lambda run: run()).splitlines()

    assert f" {level} " in said
    assert f" action={action} " in said
    assert "run r1 of ann@host" in said
