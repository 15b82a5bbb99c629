"""Calls the webhook of a configuration after a run that is not clean, and after a recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shieldtx.errors import AlreadyRunning, NameTaken
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.notice import notice_of, notice_of_failure
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.reconcile.webhook import post
from shieldtx.store.reconciliation_runs import StoredRun


def outcome_before(ended: Iterable[StoredRun]) -> str | None:
    """Return the outcome of the latest run; a run of a span of time does not count.

    `ended` has the latest run first.
    """
    return next((run.outcome for run in ended if run.mode != Mode.WINDOW), None)


def with_notice(
    configuration: Configuration, run: Callable[[], ReconcileResult], *, before: str | None
) -> ReconcileResult:
    """Call `run`, and then the webhook if the run is not clean or recovered; return the result.

    An error of `run` is raised again after its notice. `before` is the outcome of the run before;
    None: not known, and no recovery is reported. A run that another machine already makes has no
    notice here.
    """
    webhook = configuration.webhook
    if webhook is None:
        return run()
    scope = configuration.scope
    try:
        result = run()
    except Exception as error:
        if not isinstance(error, AlreadyRunning) or isinstance(error, NameTaken):
            post(webhook, notice_of_failure(configuration=scope, previous_outcome=before))
        raise
    if result.findings is None:
        notice = notice_of_failure(
            configuration=scope, run_id=result.run_id, previous_outcome=before
        )
    else:
        notice = notice_of(
            result.findings,
            RunOutcome(result.outcome),
            configuration=scope,
            run_id=result.run_id,
            previous_outcome=before,
        )
    if notice.is_due:
        post(webhook, notice)
    return result
