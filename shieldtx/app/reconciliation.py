"""A reconciliation from Python: stored runs, one at a time, each from the last good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from shieldtx.app.reconciliation_context import after_earlier_run, context_of
from shieldtx.app.reconciliation_memory import memory_of
from shieldtx.app.reconciliation_notice import outcome_before, with_notice
from shieldtx.app.reconciliation_start import Start, opened, start_of
from shieldtx.domain.events import new_event_id
from shieldtx.domain.reasons import message_of
from shieldtx.errors import AlreadyRunning, NameTaken, ShieldTxError
from shieldtx.reconcile import basis, spark_launcher
from shieldtx.reconcile.basis import Basis, basis_of
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import (
    Mode,
    is_good,
    mode_of,
    selection_since,
    watermarks_of,
)
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.spark_launcher import ReconcileRequest, ReconcileResult
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns
from shieldtx.store.tables import tables


@contextmanager
def stored_runs(configuration: Configuration) -> Iterator[SqlReconciliationRuns]:
    """Open the stored runs of a configuration, in the database of its first service."""
    home = configuration.services[0]
    engine = create_engine(home.url, hide_parameters=True)
    try:
        yield SqlReconciliationRuns(engine, tables(home.schema), scope=configuration.scope)
    finally:
        engine.dispose()


def request_of(configuration: Configuration, folder: Path) -> ReconcileRequest:
    """Return the request of a configuration; the report is written into `folder`."""
    return ReconcileRequest(
        services=configuration.services,
        folder=folder,
        context=context_of(configuration),
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
    check: Callable[[], None] = lambda: None,
) -> ReconcileResult:
    """Run the reconciliation, store its outcome under the name of `who`, and return the result.

    Without a `selection`, the run reads the rows that have changed since the last good run that
    judged the same things in the same databases. Without such a run, it reads everything, and the
    findings contain the reason. `progress` is called with each step. `check` is called before the
    run; an error of it is an error of the run. After a run that is not clean, and after a recovery,
    the webhook of the configuration is called.

    Raises AlreadyRunning while another run under the configuration's name is in progress, on any
    machine, and NameTaken if that run judges something else; LeaseLost if this run was given up
    meanwhile; ConfigurationError if Spark cannot be started, or for a URL that is not PostgreSQL's;
    SQLAlchemy's OperationalError if a database is unreachable. A run that stopped early is also a
    result.
    """

    def job(asked: ReconcileRequest, given_up: Callable[[], bool]) -> ReconcileResult:
        return spark_launcher.run(asked, given_up=given_up, report=progress)

    def run() -> ReconcileResult:
        check()
        return run_stored(configuration, request, selection, who=who, job=job)

    return with_notice(configuration, run, before=_outcome_before(configuration, selection))


def _outcome_before(configuration: Configuration, selection: Selection | None) -> str | None:
    """Return the outcome of the run before; None if unknown, or if no recovery can be reported."""
    is_window = selection is not None and mode_of(selection) is Mode.WINDOW
    if configuration.webhook is None or is_window:
        return None
    try:
        with stored_runs(configuration) as runs:
            return outcome_before(runs.ended())
    except (SQLAlchemyError, ShieldTxError):
        # The run meets the same error, and reports it.
        return None


def run_stored(
    configuration: Configuration,
    request: ReconcileRequest,
    selection: Selection | None,
    *,
    who: str,
    job: Callable[[ReconcileRequest, Callable[[], bool]], ReconcileResult],
) -> ReconcileResult:
    """Decide which rows a run reads, run `job`, and store its outcome.

    `job` receives the request of the run, and a function that returns whether to stop; see
    `run_reconciliation`.
    """
    with stored_runs(configuration) as runs, opened(request) as databases:
        run_id = str(new_event_id())
        folder = request.folder.expanduser().resolve()
        configured = basis_of(request, {})
        with _name_taken_by_another(runs, configured):
            runs.begin(
                run_id,
                # Until the start of the run is known.
                mode=Mode.INCREMENTAL if selection is None else mode_of(selection),
                who=who,
                folder=str(folder),
                basis=basis.to_json(configured),
                alike=basis.configuration_of,
            )
        try:
            with runs.holding(run_id) as lost:
                databases.check_tables()
                judged = basis_of(request, databases.histories())
                start = (
                    Start() if selection is not None else start_of(runs.good(), judged, databases)
                )
                memory = memory_of(runs, databases, judged)
                judged = replace(judged, incomplete_inboxes=memory.incomplete_inboxes)
                asked = replace(
                    request,
                    run_id=run_id,
                    context=after_earlier_run(request, selection, runs.ended(), judged),
                    selection=selection or selection_since(start.watermarks),
                    full_because=start.why_not_later,
                    observed=start.observed,
                    past=memory.past,
                    topics_before=memory.topics_before,
                    judged_until=memory.judged_until,
                    remarks=memory.remarks,
                )
                runs.judge(run_id, mode=mode_of(asked.selection), basis=basis.to_json(judged))
                result = job(asked, lost.is_set)
        except BaseException as error:
            runs.finish(run_id, outcome=RunOutcome.ERROR.name, problem=_problem(error))
            raise
        _finish(runs, run_id, judged, result)
        return result


def _problem(error: BaseException) -> str:
    """Return the message of an error, after its notes."""
    return ": ".join([*getattr(error, "__notes__", ()), message_of(error) or repr(error)])


def _finish(
    runs: SqlReconciliationRuns, run_id: str, judged: Basis, result: ReconcileResult
) -> None:
    findings = result.findings
    if findings is None:
        runs.finish(run_id, outcome=result.outcome.name, problem=result.problem)
        return
    # The job may have read more than requested.
    mode = mode_of(findings.selection)
    met = replace(judged, observed=findings.observed)
    runs.judge(run_id, mode=mode, basis=basis.to_json(met))
    runs.finish(
        run_id,
        outcome=result.outcome.name,
        good=is_good(findings, mode),
        watermarks=watermarks_of(findings),
        totals={verdict.value: rows for verdict, rows in findings.totals.items()},
    )


@contextmanager
def _name_taken_by_another(runs: SqlReconciliationRuns, now: Basis) -> Iterator[None]:
    """Raise NameTaken if the run in progress belongs to another configuration."""
    try:
        yield
    except AlreadyRunning as error:
        other = runs.running()
        earlier = None if other is None else basis.from_json(other.basis)
        if earlier is None or not basis.other_services(earlier, now):
            raise
        raise NameTaken(
            f"{error}. It is of another configuration with the same name: give each configuration "
            "a `name` of its own in its file"
        ) from error
