"""The operator of both services: reconciles and repairs on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from examples.retail.fleet import Fleet
from examples.retail.stage import Stage
from shieldtx.reconcile.findings import OutputFolder, RunOutcome, from_json
from shieldtx.reconcile.verdicts import Verdict

CONFIGURATION: Final = "reconcile.toml"
"""Written to the demo's folder: this package's file, with the address of the demo's own broker."""
REPORTS: Final = "reconciliation"


class Operator:
    """Runs commands, shows their output, and reports unexpected results."""

    def __init__(self, stage: Stage, fleet: Fleet, console: Console, jdbc_driver: Path) -> None:
        self._folder = stage.folder
        self._fleet = fleet
        self._console = console
        self._environment = {
            **stage.environment_for_all(),
            "SHIELDTX_JDBC_JAR": str(jdbc_driver),
            # By default, programs write no colours into a log file.
            **({"FORCE_COLOR": "1"} if console.is_terminal else {}),
        }
        (self._folder / CONFIGURATION).write_text(configuration(stage.kafka.bootstrap))

    def reconcile(self, run: str, expected: Mapping[Verdict, int]) -> list[str]:
        """Compare everything on Spark, and return the differences from the expectation as texts.

        `expected` are the numbers of rows by verdict, of all mismatches. All processes have
        stopped, so nothing is in flight: the margin is 0.
        """
        folder = OutputFolder(path=self._folder / REPORTS / run)
        arguments = ("--full", "--margin", "0", "--out", f"{REPORTS}/{run}")
        status = self._shieldtx(f"reconciliation {run}", "reconcile", *arguments)
        wrong = []
        if status != (RunOutcome.MISMATCHES if expected else RunOutcome.CLEAN):
            names = {outcome.value: outcome.name for outcome in RunOutcome}
            wrong.append(f"the reconciliation ended with {names.get(status, status)}")
        found = mismatches(folder)
        if found != expected:
            wrong.append(f"the reconciliation found {_words(found)}; expected {_words(expected)}")
        return wrong

    def repair(self) -> list[str]:
        """Repair the mismatches of the last run; return the problems as texts.

        The first command repairs the events that stock lacks, the second those absent from the
        topic.
        """
        wrong = []
        for name, *verdict in (
            ("repair",),
            ("repair of the topic", "--verdict", Verdict.ABSENT_FROM_TOPIC.value),
        ):
            status = self._shieldtx(name, "reconcile", "repair", "last", "--yes", *verdict)
            if status:
                wrong.append(f"the {name} ended with status {status}")
        return wrong

    def trace(self, basket: str) -> list[str]:
        """Print the timeline of one order's event; return the problems as texts."""
        arguments = ("--biz-key", basket, "--type", "orders.placed")
        status = self._shieldtx("trace", "trace", *arguments)
        return [f"the trace ended with status {status}"] if status else []

    def _shieldtx(self, name: str, *arguments: str) -> int:
        process = self._fleet.command(
            name, self._environment, *arguments, "--config", CONFIGURATION
        )
        said = Text.from_ansi(process.log.read_text(encoding="utf-8"))
        self._console.print(said, soft_wrap=True, highlight=False)
        return process.exit_status or 0


def configuration(bootstrap: str) -> str:
    """Return this package's reconcile.toml, with another broker's address."""
    written = Path(__file__).with_name(CONFIGURATION).read_text(encoding="utf-8")
    return re.sub(r'^bootstrap = ".*"', f'bootstrap = "{bootstrap}"', written, flags=re.MULTILINE)


def mismatches(folder: OutputFolder) -> dict[Verdict, int]:
    """Return the number of rows of each mismatch; empty if the run failed."""
    if not folder.findings.is_file():
        return {}
    totals = from_json(folder.findings.read_bytes()).totals
    return {verdict: rows for verdict, rows in totals.items() if verdict.is_mismatch and rows}


def _words(rows: Mapping[Verdict, int]) -> str:
    return ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(rows.items())) or "nothing"
