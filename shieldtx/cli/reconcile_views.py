"""The result of a reconciliation on standard output: as tables, and as JSON."""

from __future__ import annotations

from typing import Any

from shieldtx.cli.output import print_fields, print_made_table
from shieldtx.reconcile.report.terminal import remarks, summary_table
from shieldtx.reconcile.spark_launcher import ReconcileResult


def show(result: ReconcileResult) -> None:
    """Print the outcome of a reconciliation and where its files are."""
    if result.findings is not None:
        print_made_table(summary_table(result.findings))
    folder = result.folder
    print_fields(
        [
            ("outcome", result.outcome.name),
            *(remarks(result.findings) if result.findings else []),
            *([("report", folder.page), ("rows", folder.rows)] if result.findings else []),
            ("Spark's log", folder.log),
        ]
    )


def data_of(result: ReconcileResult) -> dict[str, Any]:
    """Return the same for programs: its keys are stable."""
    findings, folder = result.findings, result.folder
    data: dict[str, Any] = {
        "outcome": result.outcome.name,
        "exit_status": int(result.outcome),
        "problem": result.problem or None,
        "log": str(folder.log),
    }
    if findings is None:
        return data
    return data | {
        "mismatched_events": findings.mismatched_events,
        "not_judged": list(findings.problems),
        "left_out": list(findings.left_out),
        "remarks": list(findings.remarks),
        "full_because": list(findings.full_because),
        "totals": {verdict.value: number for verdict, number in findings.totals.items()},
        "pairs": [
            {
                "kind": pair.kind.value,
                "upstream": pair.upstream,
                "downstream": pair.downstream,
                "group": pair.group,
                "not_judged": list(findings.problems),
                "totals": {verdict.value: number for verdict, number in verdicts.items()},
            }
            for pair, verdicts in findings.by_pair.items()
        ],
        "report": str(folder.page),
        "rows": str(folder.rows),
        "summary": str(folder.summary),
        "findings": str(folder.findings),
    }
