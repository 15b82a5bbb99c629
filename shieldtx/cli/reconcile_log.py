"""The log records of the runs of `shieldtx reconcile --cron`, which monitoring reads."""

from __future__ import annotations

import logging

from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import Findings, RunOutcome
from shieldtx.reconcile.spark_launcher import ReconcileResult

log = logging.getLogger(__name__)


def log_end(configuration: Configuration, result: ReconcileResult) -> None:
    """Log the outcome of a run: each level has an action of its own."""
    findings = result.findings
    if result.outcome is RunOutcome.CLEAN:
        log.info(
            "reconciliation ended",
            extra={"action": "reconciliation_ended", **_run(configuration, result)},
        )
    elif result.outcome is RunOutcome.NOT_JUDGED:
        log.warning(
            "reconciliation could not judge everything",
            extra={
                "action": "reconciliation_not_judged",
                **_run(configuration, result),
                "count": len(findings.problems) if findings else None,
            },
        )
    else:
        log.error(
            "reconciliation needs an operator",
            extra={
                "action": "reconciliation_needs_operator",
                **_run(configuration, result),
                "count": _mismatches(findings) if findings else None,
                # The lines after the first one are the end of Spark's log, in the folder.
                "error": next(iter(result.problem.splitlines()), None),
            },
        )


def _run(configuration: Configuration, result: ReconcileResult) -> dict[str, object]:
    return {
        "run_id": result.run_id or None,
        "configuration": configuration.scope,
        "outcome": result.outcome.name,
        "folder": str(result.folder.path),
    }


def _mismatches(findings: Findings) -> int:
    return sum(rows for verdict, rows in findings.totals.items() if verdict.is_mismatch)
