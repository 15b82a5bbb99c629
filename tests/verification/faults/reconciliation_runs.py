"""The reconciliation of two banks: its runs and its repairs, through the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from shieldtx.cli import main, reconcile_repair
from shieldtx.embedded.jars import fetch_jdbc_driver
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.repair.listed_rows import listed_rows
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_process import BATCH, kill_at
from tests.verification.faults.bank import MARKER, TRANSFERRED, auditors_of
from tests.verification.faults.banks import Banks
from tests.verification.faults.mutants.reconciliation import VARIABLE, run_mutated
from tests.verification.faults.reconciliation_outcomes import Mismatch
from tests.verification.faults.workers import Worker

WITHIN_S = 300.0
"""More seconds than a run takes on a busy machine."""
MOST_ATTEMPTS = 4
"""Attempts of every handler of the banks."""
MISMATCHES: Final = [verdict for verdict in Verdict if verdict.is_mismatch]

_SERVICES = """
[services.upstream]
url = "UPSTREAM_URL"
retention = "for-ever"
[services.downstream]
url = "DOWNSTREAM_URL"
retention = "for-ever"
"""
_TOPICS = """
[topics]
bootstrap = "{bootstrap}"
prefix = "{prefix}"
"""
_GROUP = """
[[services.{side}.groups]]
name = "{name}"
{what} = {topics}
max_attempts = {attempts}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconciliationRun:
    """A run that has ended."""

    name: str
    status: int | None
    found: dict[str, Any]
    mismatches: AbstractSet[Mismatch]

    @property
    def totals(self) -> dict[str, int]:
        """The number of events by verdict."""
        totals: dict[str, int] = self.found["totals"]
        return totals


@dataclass(kw_only=True)
class ReconciliationRuns:
    """All runs and repairs of one pair of banks."""

    banks: Banks
    margin_s: float = 1.0
    with_auditors: bool = False
    with_topics: bool = False
    """Whether runs also read the topics."""
    topics: Sequence[str] = (TRANSFERRED,)
    _runs: int = field(default=0, init=False)

    @property
    def receiving(self) -> list[str]:
        """The groups that receive transfers."""
        group = self.banks.downstream.group
        return [group, *([auditors_of(group)] if self.with_auditors else [])]

    def begin(self, *words: str) -> tuple[str, Worker]:
        """Start a run; return its name, which is that of its folder, and its process."""
        self._runs += 1
        name = f"run-{self._runs}"
        folder = str(self.banks.folder / name)
        margin = str(self.margin_s)
        return name, self._launch("--margin", margin, "--out", folder, "--json", *words)

    def end(self, name: str, run: Worker) -> ReconciliationRun:
        """Wait for the end of a run; return its findings."""
        assert run.join(WITHIN_S), f"{name} takes longer than {WITHIN_S:.0f} s\n{run.tail()}"
        assert run.exit_status != RunOutcome.ERROR, f"{name} broke off\n{run.tail()}"
        self._expect_no_secrets(name)
        rows = listed_rows(OutputFolder(path=self.banks.folder / name).rows, MISMATCHES)
        return ReconciliationRun(
            name=name,
            status=run.exit_status,
            found=_printed(run),
            mismatches={Mismatch(row.verdict, row.group, row.event_id) for row in rows},
        )

    def run(self, *words: str) -> ReconciliationRun:
        """Run from beginning to end."""
        return self.end(*self.begin(*words))

    def judge(self, planted: AbstractSet[Mismatch], *words: str) -> ReconciliationRun:
        """Run, and expect exactly the planted mismatches."""
        result = self.run(*words)
        self.expect_exact(result, planted)
        return result

    def expect_exact(self, result: ReconciliationRun, planted: AbstractSet[Mismatch]) -> None:
        """Compare a run's mismatches with the planted ones, and count."""
        expect = self.banks.expect
        self.banks.reconciled.note(planted, result.mismatches)
        expect(not planted - result.mismatches, f"{result.name} missed {_few(planted, result)}")
        false = result.mismatches - planted
        expect(not false, f"{result.name} reported false mismatches: {sorted(false)[:3]}")
        wanted = RunOutcome.MISMATCHES if planted else RunOutcome.CLEAN
        expect(result.status == wanted, f"{result.name} ended with {result.status}, not {wanted}")

    def runs(self) -> list[dict[str, Any]]:
        """Return the stored runs, the latest first."""
        listing = self._launch(command="runs")
        listing.finish(WITHIN_S)
        text = listing.log.read_text()
        found: list[dict[str, Any]] = json.loads(text[text.index("[") :])
        return found

    def begin_repair(self, *words: str) -> Worker:
        """Start a repair of the latest run."""
        return self._launch("last", "--yes", *words, command="repair")

    def begin_repair_that_dies(self, place: str) -> Worker:
        """Start a repair of the latest run in small batches; it is killed at a position."""
        words = self._words("last", "--yes", command="repair")
        return self.banks.upstream.call("dying repair", _repair_and_die, words, place, **self._urls)

    def end_repair(self, repair: Worker) -> dict[str, Any]:
        """Wait for a repair's end, and return its report."""
        repair.finish(WITHIN_S)
        return _printed(repair)

    def repair(self, *words: str) -> dict[str, Any]:
        """Repair the findings of the latest run."""
        return self.end_repair(self.begin_repair(*words))

    def log_of(self, name: str) -> Path:
        """Return the file to which Spark logs in a run."""
        return OutputFolder(path=self.banks.folder / name).log

    def _launch(self, *words: str, command: str = "") -> Worker:
        up, words = self.banks.upstream, self._words(*words, command=command)
        if VARIABLE in up.environment:
            return up.call(" ".join(words), run_mutated, words, **self._urls)
        return up.launch(*words, **self._urls)

    def _words(self, *words: str, command: str) -> tuple[str, ...]:
        config = ("--config", str(self._config()))
        if not command:
            return ("reconcile", *config, *words)
        return ("reconcile", command, *words, *config, "--json")

    @property
    def _urls(self) -> dict[str, str]:
        return {
            "UPSTREAM_URL": self.banks.upstream.url,
            "DOWNSTREAM_URL": self.banks.downstream.url,
            "SHIELDTX_JDBC_JAR": str(fetch_jdbc_driver()),
        }

    def _config(self) -> Path:
        up, down = self.banks.sides
        groups = [(up, up.group, "compensates", [TRANSFERRED])]
        groups += [(down, group, "receives", list(self.topics)) for group in self.receiving]
        broker = _TOPICS.format(bootstrap=self.banks.kafka.bootstrap, prefix=self.banks.prefix)
        path = self.banks.folder / "reconcile.toml"
        # A process that was started a moment ago may be about to read the file: never half of it.
        complete = path.with_suffix(".new")
        complete.write_text(
            _SERVICES
            + (broker if self.with_topics else "")
            + "".join(
                _GROUP.format(
                    side=side.name,
                    name=name,
                    what=what,
                    topics=json.dumps(topics),
                    attempts=MOST_ATTEMPTS,
                )
                for side, name, what, topics in groups
            )
        )
        complete.replace(path)
        return path

    def _expect_no_secrets(self, name: str) -> None:
        secrets = [secret.encode() for secret in (MARKER, self.banks.postgres.password)]
        for file in filter(Path.is_file, (self.banks.folder / name).rglob("*")):
            content = file.read_bytes()
            leaked = any(secret in content for secret in secrets)
            self.banks.expect(not leaked, f"{name} shows a secret in {file.name}")


LATE_AND_RESTORED: Final = ("--out-of-order", "--restored", "downstream")
"""Options of an operator: groups can take late events, and effects were lost with the rows."""


def done_by(*repairs: dict[str, Any]) -> dict[str, int]:
    """Return how many rows repairs have changed, by action."""
    done: dict[str, int] = {}
    for repair in repairs:
        for entry in repair["repaired"]:
            done[entry["action"]] = done.get(entry["action"], 0) + entry["done"]
    return {action: rows for action, rows in done.items() if rows}


def _few(planted: AbstractSet[Mismatch], result: ReconciliationRun) -> str:
    missed = sorted(planted - result.mismatches)
    return f"{len(missed)}: {missed[:3]}, with {result.totals}"


def _printed(worker: Worker) -> dict[str, Any]:
    text = worker.log.read_text()
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return found


def _repair_and_die(words: Sequence[str], place: str) -> None:
    kill_at(place, 1)
    # A repair that takes one batch by default takes several.
    reconcile_repair.Repair = partial(Repair, batch=BATCH)
    sys.argv = ["shieldtx", *words]
    main()
