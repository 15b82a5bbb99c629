"""A reconciliation from Python: stored runs, one at a time, each from the last good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import create_engine

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


def request_of(configuration: Configuration, folder: Path) -> ReconcileRequest:
    """Return what a configuration asks for; the report goes into `folder`."""
    return ReconcileRequest(
        services=configuration.services,
        folder=folder,
        broker=configuration.broker,
        margin=configuration.margin,
        statement_timeout=configuration.statement_timeout,
    )


def run_reconciliation(
    configuration: Configuration,
    request: ReconcileRequest,
    selection: Selection | None = None,
    *,
    who: str,
    progress: Callable[[str], None] = lambda _: None,
) -> ReconcileResult:
    """Run the reconciliation to its end, and store its outcome under the name of `who`.

    Without a `selection`, it reads what has moved since the last good run. `progress` is called
    with each step. Raises AlreadyRunning while another run of the configuration is in progress, on
    any machine; LeaseLost where this run was given up meanwhile; ConfigurationError where Spark
    cannot be started. A run that broke off is a result too.
    """
    with stored_runs(configuration) as runs:
        if selection is None:
            selection = selection_since(runs.last_good())
        run_id, mode = str(new_event_id()), mode_of(selection)
        folder = request.folder.expanduser().resolve()
        runs.begin(run_id, mode=mode, who=who, folder=str(folder))
        try:
            with runs.holding(run_id) as lost:
                asked = replace(request, run_id=run_id, selection=selection)
                result = run(asked, given_up=lost.is_set, say=progress)
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
