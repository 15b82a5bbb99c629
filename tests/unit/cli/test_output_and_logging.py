"""The parts of the command line that need no process: arguments, lines, logs."""

from __future__ import annotations

import json
import logging
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import NoSuchModuleError, OperationalError, ProgrammingError

from shieldtx.cli import reconcile_views
from shieldtx.cli.errors import FAILED, MISCONFIGURED, Failure, failure_of
from shieldtx.cli.logging import LogFormat, LogLevel, set_up
from shieldtx.cli.output import age, print_fields, print_table
from shieldtx.cli.program import _common_first
from shieldtx.domain.reasons import WITH_TRACEBACK
from shieldtx.domain.states import TxKind
from shieldtx.errors import BrokerUnavailable, SchemaMismatch
from shieldtx.logs.text import printable
from shieldtx.reconcile.findings import Bounds, Count, Findings, OutputFolder, Pair, RunOutcome
from shieldtx.reconcile.rules import Verdict
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.reconcile.window import Window


@pytest.mark.parametrize(
    ("given", "sorted_out"),
    [
        (["relay"], ["relay"]),
        (["relay", "--app", "a:b"], ["--app", "a:b", "relay"]),
        (["consume", "--app=a:b", "stock"], ["--app=a:b", "consume", "stock"]),
        (["dead", "--", "--app", "x"], ["dead", "--", "--app", "x"]),
        (["dead", "list", "--group", "g", "--log-format", "json", "--json"],
         ["--log-format", "json", "dead", "list", "--group", "g", "--json"]),
    ],
)  # fmt: skip
def test_common_options_come_first(given: list[str], sorted_out: list[str]) -> None:
    assert _common_first(given) == sorted_out


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (None, "-"),
        (timedelta(seconds=0.26), "0.3 s"),
        (timedelta(seconds=59.94), "59.9 s"),
        (timedelta(seconds=61), "1 min 1 s"),
        (timedelta(hours=1, minutes=2, seconds=3), "1 h 2 min"),
        (timedelta(days=40, hours=23), "40 d 23 h"),
    ],
)
def test_age_has_its_two_largest_units(duration: timedelta | None, text: str) -> None:
    assert age(duration) == text


def test_foreign_text_cannot_command_the_terminal() -> None:
    assert printable("müsli \x1b[2J\r\n\x00\u202e") == "müsli \\x1b[2J\\r\\n\\x00\\u202e"


def test_foreign_text_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("t", ("key",), [("[red]k[/red] :smile:",)])
    print_fields([("key", "[red]k[/red]"), ("longer name", "v" * 500), ("nothing", None)])

    output = capsys.readouterr().out
    assert "[red]k[/red] :smile:" in output
    assert output.splitlines()[-3:] == [
        "key          [red]k[/red]",
        f"longer name  {'v' * 500}",
        "nothing",
    ]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (SchemaMismatch("too\nold"), Failure(line="too old", status=MISCONFIGURED)),
        (BrokerUnavailable("away"), Failure(line="away", status=FAILED)),
        (
            OperationalError("SELECT 'secret'", {}, sqlite3.OperationalError("no\n\tanswer")),
            Failure(line="the database cannot be used: no; answer", status=FAILED),
        ),
        (
            ProgrammingError("SELECT 'secret'", {}, sqlite3.ProgrammingError("no right")),
            Failure(line="the database refused a statement: no right", status=FAILED),
        ),
        (
            NoSuchModuleError("no such plugin"),
            Failure(line="SHIELDTX_DATABASE_URL: no such plugin", status=MISCONFIGURED),
        ),
        (
            ImportError("no pq wrapper available, libpq not found"),
            Failure(
                line="psycopg cannot be used (no pq wrapper available, libpq not found): "
                "pip install 'shieldtx[binary]'",
                status=MISCONFIGURED,
            ),
        ),
        (
            UnicodeEncodeError("utf-8", "pass\udcff", 4, 5, "surrogates not allowed"),
            Failure(line="an argument or a setting is not UTF-8 text", status=MISCONFIGURED),
        ),
        (ImportError("no module named shop"), None),
        (ZeroDivisionError(), None),
        (None, None),
    ],
)
def test_error_that_an_operator_can_fix_is_one_line(
    error: Exception | None, failure: Failure | None
) -> None:
    assert failure_of(error) == failure


class TestLog:
    def log(self, error: Exception) -> None:
        try:
            raise error
        except type(error):
            logging.getLogger("shieldtx.x").exception("%s failed", "poll")

    def test_expected_error_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up(LogLevel.INFO, LogFormat.PLAIN)
        self.log(BrokerUnavailable("nobody\nanswers"))
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith('ERROR   shieldtx.x: poll failed error="nobody answers"')

    def test_defect_has_its_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up(LogLevel.INFO, LogFormat.PLAIN)
        self.log(ZeroDivisionError("oh"))
        output = capsys.readouterr().err
        assert "Traceback (most recent call last)" in output
        assert output.endswith("ZeroDivisionError: oh\n")

    def test_every_error_has_its_traceback_when_debugging(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        set_up(LogLevel.DEBUG, LogFormat.PLAIN)
        self.log(BrokerUnavailable("away"))
        assert "Traceback (most recent call last)" in capsys.readouterr().err

    def test_json_is_one_object_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up(LogLevel.INFO, LogFormat.JSON)
        self.log(BrokerUnavailable("away"))
        self.log(ZeroDivisionError("oh"))
        expected, defect = map(json.loads, capsys.readouterr().err.splitlines())
        assert (expected["message"], expected["error"]) == ("poll failed", "away")
        assert "traceback" not in expected
        assert (defect["message"], defect["level"]) == ("poll failed", "error")
        assert "ZeroDivisionError: oh" in defect["traceback"]

    def test_other_libraries_are_quiet_until_debugging(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = []
        for level in (LogLevel.INFO, LogLevel.DEBUG):
            set_up(level, LogFormat.PLAIN)
            logging.getLogger("kafka.net.manager").error("cannot connect")
            logging.getLogger("apscheduler.executors").warning("tick")
            logging.getLogger("alembic.runtime").info("running")
            said.append(capsys.readouterr().err)
        assert said[0] == ""
        assert [line.partition(": ")[2] for line in said[1].splitlines()] == [
            "cannot connect",
            "tick",
        ]

    def test_lines_below_the_level_are_left_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up(LogLevel.WARNING, LogFormat.PLAIN)
        logging.getLogger("shieldtx.x").info("busy")
        assert capsys.readouterr().err == ""


def test_report_shows_the_findings_of_a_reconciliation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pair = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="stock")
    findings = Findings(
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=1.5,
        margin=timedelta(minutes=15),
        bounds=(
            Bounds(
                kind=TxKind.ROLLBACK,
                upstream="stock",
                downstream="orders",
                window=Window(obstacle="nobody received any"),
            ),
        ),
        counts=(Count(pair=pair, verdict=Verdict.MISSING_DOWNSTREAM, rows=3),),
        first_rows=(),
    )
    result = ReconcileResult(
        outcome=RunOutcome.MISMATCHES,
        findings=findings,
        problem="",
        folder=OutputFolder(path=tmp_path),
    )

    reconcile_views.show(result)

    output = capsys.readouterr().out
    assert ["orders", "→", "stock,", "events", "stock", "3", "missing", "downstream", "0"] in [
        line.split() for line in output.splitlines()
    ]
    assert "3 mismatches. Not everything could be judged." in output
    assert "not judged   nobody received any" in output
    assert f"report       {tmp_path}/report.html" in output


@pytest.mark.parametrize("form", list(LogFormat))
def test_last_error_of_a_handler_keeps_its_traceback(form, capsys):
    set_up(LogLevel.INFO, form)
    error = OperationalError("SELECT 1", {}, sqlite3.OperationalError("no such table: pay"))
    log = logging.getLogger("shieldtx.consumer.event_processor")
    log.warning("poll failed", exc_info=error)
    explained = capsys.readouterr().err
    log.warning("gives up", exc_info=error, extra=WITH_TRACEBACK)
    output = capsys.readouterr().err
    assert "OperationalError" not in explained
    assert "sqlalchemy.exc.OperationalError" in output
