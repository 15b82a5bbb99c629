"""What a webhook learns about a run: its outcome and numbers, and no data of customers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shieldtx.reconcile.findings import Findings, RunOutcome
from shieldtx.reconcile.report.labels import headline
from shieldtx.reconcile.verdicts import Verdict

TYPE = "shieldtx.reconciliation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """The outcome of a run, without keys, ids of events, payloads and addresses."""

    configuration: str
    run_id: str | None
    outcome: RunOutcome
    previous_outcome: str | None
    """The outcome of the run before; None: not known."""
    headline: str
    started_at: datetime | None = None
    seconds: float | None = None
    mismatches: int | None = None
    mismatched_events: int | None = None
    not_judged: int | None = None
    """The number of reasons why something could not be judged."""
    totals: Mapping[Verdict, int] = field(default_factory=dict)

    @property
    def is_recovery(self) -> bool:
        """Whether the run is clean, and the run before was not."""
        clean = RunOutcome.CLEAN
        return self.outcome is clean and self.previous_outcome not in {None, clean.name}

    @property
    def is_due(self) -> bool:
        """Whether the webhook is called."""
        return self.outcome is not RunOutcome.CLEAN or self.is_recovery


def notice_of(
    findings: Findings,
    outcome: RunOutcome,
    *,
    configuration: str,
    run_id: str,
    previous_outcome: str | None,
) -> Notice:
    """Return the notice of a run that completed."""
    totals = findings.totals
    return Notice(
        configuration=configuration,
        run_id=run_id or None,
        outcome=outcome,
        previous_outcome=previous_outcome,
        headline=headline(findings),
        started_at=findings.started_at,
        seconds=findings.seconds,
        mismatches=sum(rows for verdict, rows in totals.items() if verdict.is_mismatch),
        mismatched_events=findings.mismatched_events,
        not_judged=len(findings.problems),
        totals=totals,
    )


def notice_of_failure(
    *, configuration: str, run_id: str = "", previous_outcome: str | None
) -> Notice:
    """Return the notice of a run that failed or did not start; its log has the reason."""
    return Notice(
        configuration=configuration,
        run_id=run_id or None,
        outcome=RunOutcome.ERROR,
        previous_outcome=previous_outcome,
        headline="The run failed or did not start: its log has the reason.",
    )


def to_json(notice: Notice) -> bytes:
    """Encode a notice; `text` has the outcome in one line, for programs that show nothing else."""
    recovered = f" Recovered after {notice.previous_outcome}." if notice.is_recovery else ""
    content = {
        "type": TYPE,
        "text": (
            f"shieldtx reconciliation {notice.configuration}: {notice.outcome.name}. "
            f"{notice.headline}{recovered}"
        ),
        "configuration": notice.configuration,
        "run_id": notice.run_id,
        "outcome": notice.outcome.name,
        "previous_outcome": notice.previous_outcome,
        "recovered": notice.is_recovery,
        "started_at": notice.started_at.isoformat() if notice.started_at else None,
        "seconds": notice.seconds,
        "mismatches": notice.mismatches,
        "mismatched_events": notice.mismatched_events,
        "not_judged": notice.not_judged,
        "totals": {verdict.value: rows for verdict, rows in notice.totals.items()},
    }
    return json.dumps(content).encode()
