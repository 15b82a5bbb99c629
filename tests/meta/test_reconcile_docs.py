"""The pages on the reconciliation match the code."""

from __future__ import annotations

import inspect
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shieldtx.app.reconciliation import run_reconciliation
from shieldtx.ports.repair import RepairAction
from shieldtx.reconcile.config import Configuration, read_configuration
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.notice import Notice, to_json
from shieldtx.reconcile.repair.decisions import NAMED, REPAIRED
from shieldtx.reconcile.rules import PAIRS, TOPICS
from shieldtx.reconcile.spark_launcher import ReconcileRequest
from shieldtx.reconcile.verdicts import Verdict
from tests.support.project import ROOT

PAGES = {
    kind: (ROOT / "docs" / kind / name).read_text()
    for kind, name in (("how-to", "reconciliation.md"), ("reference", "verdicts.md"))
}
HOW_TO, REFERENCE = PAGES["how-to"], PAGES["reference"]
ROWS = {
    verdict.strip(" *"): (name, cells)
    for name, *cells in re.findall(
        r"^\| (\**[A-Z_, ]+\**) \|(.*)\|(.*)\|(.*)\|$", REFERENCE, re.MULTILINE
    )
    for verdict in name.split(",")
}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_each_verdict_is_explained_and_mismatches_stand_out(verdict: Verdict) -> None:
    name, _ = ROWS[verdict.value]
    assert name.startswith("**") == verdict.is_mismatch


def test_every_explained_verdict_exists() -> None:
    assert {name for name in ROWS if name} <= {verdict.value for verdict in Verdict}


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict.is_mismatch])
def test_page_marks_the_verdicts_that_are_repaired(verdict: Verdict) -> None:
    _, cells = ROWS[verdict.value]
    last = cells[-1].strip()
    assert (last == "no") == (verdict not in {*REPAIRED, *NAMED})


def test_exit_statuses_are_those_of_the_outcomes() -> None:
    documented = re.findall(r"^ +\| (\d) \| ([A-Z_]+) \|", HOW_TO, re.MULTILINE)
    assert {name: int(status) for status, name in documented} == {
        o.name: o.value for o in RunOutcome
    }


def test_page_names_the_verdicts_of_both_pairs_and_topics() -> None:
    (named,) = re.findall(r"where topics are read\. (.*?) occur there too", REFERENCE)
    both = set(PAIRS.verdicts) & set(TOPICS.verdicts)
    assert set(re.findall(r"[A-Z_]+", named)) == both


def test_each_action_of_a_repair_is_explained() -> None:
    _, _, part = REFERENCE.partition("## Actions of a repair")
    cells = re.findall(r"^\| ([a-z, ]+) \|.*\|.*\|$", part, re.MULTILINE)
    documented = {action for cell in cells for action in cell.split(", ")} - {"what it does"}
    assert documented == {action.value for action in RepairAction}


def test_each_file_of_a_run_is_named() -> None:
    folder = OutputFolder(path=Path("x"))
    files = {folder.page, folder.findings, folder.log, folder.rows, folder.summary}
    documented = set(re.findall(r"^\| `([a-z.]+/?)` \|", REFERENCE, re.MULTILINE))
    assert {name.rstrip("/") for name in documented} == {file.name for file in files}


def test_example_file_can_be_read(tmp_path: Path) -> None:
    webhook, example = re.findall(r"```toml\n(.*?)```", HOW_TO, re.DOTALL)
    path = tmp_path / "reconcile.toml"
    both = f"{example}\n{webhook}"
    uncommented = re.sub(r"^# (\w+ = )", r"\1", both, flags=re.MULTILINE)
    for number, text in enumerate((example, both, uncommented)):
        path.write_text(text)
        variables = dict.fromkeys(re.findall(r'"([A-Z_]+)"', text), "postgresql://h/d")
        variables |= {name: "https://h/d" for name in variables if "WEBHOOK" in name}
        found = read_configuration(path, variables)
        assert [service.name for service in found.services] == ["orders", "stock"], number
        assert (found.webhook is not None) == ("[webhook]" in text)


def test_example_of_a_notice_is_what_a_run_posts() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", HOW_TO, re.DOTALL)
    now = datetime(2026, 1, 15, 2, tzinfo=UTC)
    sent = to_json(
        Notice(
            configuration="nightly",
            run_id="01a21bf0-3903-75f7-8904-ac49a6da9feb",
            outcome=RunOutcome.MISMATCHES,
            previous_outcome="CLEAN",
            headline="3 mismatches in 2 events.",
            started_at=now,
            seconds=4.2,
            mismatches=3,
            mismatched_events=2,
            not_judged=0,
            totals={Verdict.MATCHED: 9, Verdict.STUCK: 3},
        )
    )
    assert json.loads(example) == json.loads(sent)


def test_python_example_requests_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples" / "retail")
    for name in ("ORDERS_URL", "STOCK_URL"):
        monkeypatch.setenv(name, "postgresql://host/database")
    example = "".join(re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL))
    prepared, call = example.split("result = ", 1)
    defined: dict[str, object] = {}
    exec(prepared, defined)  # noqa: S102  the page is the repository's own
    request = defined["request"]
    assert isinstance(request, ReconcileRequest)
    assert [service.name for service in request.services] == ["orders", "stock"]
    configuration = defined["configuration"]
    assert isinstance(configuration, Configuration)
    assert (request.margin, request.statement_timeout, request.broker) == (
        configuration.margin,
        configuration.statement_timeout,
        configuration.broker,
    )
    assert inspect.signature(run_reconciliation).bind("configuration", request, who="airflow")
    assert call.startswith('run_reconciliation(configuration, request, who="airflow")')
