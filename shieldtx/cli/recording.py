"""Stored runs of the reconciliation: one at a time, and the next from the last good one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import create_engine

from shieldtx.cli.output import showing_progress
from shieldtx.cli.prompts import current_operator
from shieldtx.domain.events import new_event_id
from shieldtx.domain.reasons import message_of
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import is_good, mode_of, selection_since, watermarks_of
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.spark_launcher import ReconcileRequest, ReconcileResult, run
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns
from shieldtx.store.tables import tables


@contextmanager
def stored_runs(configuration: Configuration) -> Iterator[SqlReconciliationRuns]:
    """Open the stored runs of a configuration: they are in the database of its first service."""
    home = configuration.services[0]
    engine = create_engine(home.url, hide_parameters=True)
    try:
        yield SqlReconciliationRuns(engine, tables(home.schema), scope=configuration.scope)
    finally:
        engine.dispose()


def run_stored(
    configuration: Configuration, request: ReconcileRequest, selection: Selection | None
) -> ReconcileResult:
    """Run the reconciliation and store how it ended.

    Without a `selection`, it looks at what has moved since the last good run. Raises AlreadyRunning
    while another run of the configuration is at work, here or on another machine, and LeaseLost
    where this one was given up meanwhile.
    """
    with stored_runs(configuration) as runs:
        if selection is None:
            selection = selection_since(runs.last_good())
        run_id, mode = str(new_event_id()), mode_of(selection)
        folder = request.folder.expanduser().resolve()
        runs.begin(run_id, mode=mode, who=current_operator(), folder=str(folder))
        try:
            with runs.holding(run_id) as lost:
                asked = replace(request, run_id=run_id, selection=selection)
                with showing_progress() as say:
                    result = run(asked, given_up=lost.is_set, say=say)
        except BaseException as error:
            problem = message_of(error) or repr(error)
            runs.finish(run_id, outcome=RunOutcome.ERROR.name, problem=problem)
            raise
        findings = result.findings
        if findings is None:
            runs.finish(run_id, outcome=result.outcome.name, problem=result.problem)
        else:
            runs.finish(
                run_id,
                outcome=result.outcome.name,
                good=is_good(findings, mode),
                watermarks=watermarks_of(findings),
                totals={verdict.value: rows for verdict, rows in findings.totals.items()},
            )
        return result
