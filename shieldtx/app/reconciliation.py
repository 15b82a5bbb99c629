"""A reconciliation from Python: stored runs, one at a time, each from the last good one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import create_engine

from shieldtx.domain.events import new_event_id
from shieldtx.domain.reasons import message_of
from shieldtx.errors import AlreadyRunning
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
from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.request import Selection, ServiceDatabase
from shieldtx.reconcile.spark_launcher import ReconcileRequest, ReconcileResult
from shieldtx.store.database_history import SqlDatabaseHistory
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns, StoredRun
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

    Without a `selection`, it reads what has moved since the last good run that judged the same
    things in the same databases; where there is none, it looks at everything, and the findings say
    why. `progress` is called with each step.

    Raises AlreadyRunning while another run under the configuration's name is in progress, on any
    machine; LeaseLost where this run was given up meanwhile; ConfigurationError where Spark cannot
    be started, for a URL that is not PostgreSQL's; SQLAlchemy's OperationalError where a database
    cannot be reached. A run that broke off is a result too.
    """

    def job(asked: ReconcileRequest, given_up: Callable[[], bool]) -> ReconcileResult:
        return spark_launcher.run(asked, given_up=given_up, say=progress)

    return run_stored(configuration, request, selection, who=who, job=job)


def run_stored(
    configuration: Configuration,
    request: ReconcileRequest,
    selection: Selection | None,
    *,
    who: str,
    job: Callable[[ReconcileRequest, Callable[[], bool]], ReconcileResult],
) -> ReconcileResult:
    """Decide what a run looks at, have `job` do it, and store how it ended.

    `job` gets the request of the run, and what tells it to break off; see `run_reconciliation`.
    """
    with stored_runs(configuration) as runs, _histories(request.services) as histories:
        judged = basis_of(request, {name: history.now() for name, history in histories.items()})
        why: tuple[str, ...] = ()
        if selection is None:
            start = _start_of(runs.good(), judged, histories)
            selection, why = selection_since(start.watermarks), start.why_not_later
        run_id, mode = str(new_event_id()), mode_of(selection)
        folder = request.folder.expanduser().resolve()
        with _telling_of_namesakes(runs, judged):
            runs.begin(run_id, mode=mode, who=who, folder=str(folder), basis=basis.to_json(judged))
        try:
            with runs.holding(run_id) as lost:
                asked = replace(request, run_id=run_id, selection=selection, full_because=why)
                result = job(asked, lost.is_set)
        except BaseException as error:
            problem = message_of(error) or repr(error)
            runs.finish(run_id, outcome=RunOutcome.ERROR.name, problem=problem)
            raise
        _finish(runs, run_id, mode, result)
        return result


def _finish(runs: SqlReconciliationRuns, run_id: str, mode: Mode, result: ReconcileResult) -> None:
    findings = result.findings
    if findings is None:
        runs.finish(run_id, outcome=result.outcome.name, problem=result.problem)
        return
    runs.finish(
        run_id,
        outcome=result.outcome.name,
        good=is_good(findings, mode),
        watermarks=watermarks_of(findings),
        totals={verdict.value: rows for verdict, rows in findings.totals.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    """From where an incremental run may start."""

    watermarks: Mapping[str, datetime] | None = None
    why_not_later: tuple[str, ...] = ()
    """Why it starts from the beginning, in sentences."""


def _start_of(
    good: Iterable[StoredRun], now: Basis, histories: Mapping[str, SqlDatabaseHistory]
) -> _Start:
    """Find the latest good run that judged the same; of what it judged nothing may be lost since.

    A run of another configuration says nothing about what that one did not judge, and a database
    that was restored may have lost what was in order.
    """
    reasons: list[str] = []
    for stored in good:
        earlier = basis.from_json(stored.basis)
        if earlier is None:
            reasons = reasons or ["another release of shieldtx made the earlier runs"]
        elif changed := basis.changes(earlier, now):
            reasons = reasons or changed
        else:
            lost = [*basis.losses(earlier, now), *_lacking(earlier, histories)]
            if lost:
                return _Start(why_not_later=tuple(lost))
            return _Start(watermarks=stored.watermarks)
    return _Start(why_not_later=tuple(reasons or ["no earlier run was good"]))


def _lacking(earlier: Basis, histories: Mapping[str, SqlDatabaseHistory]) -> Iterator[str]:
    for name, service in earlier.services.items():
        for table in histories[name].lacks(service.history) if service.history else ():
            yield (
                f"the {table} of {name} lacks what was its newest event: the database was restored "
                "from an earlier copy, or the event was purged"
            )


@contextmanager
def _histories(services: Sequence[ServiceDatabase]) -> Iterator[Mapping[str, SqlDatabaseHistory]]:
    engines = {}
    try:
        for service in services:
            jdbc_address(service.name, service.url)
            engine = engines[service.name] = create_engine(service.url, hide_parameters=True)
        yield {
            service.name: SqlDatabaseHistory(engines[service.name], tables(service.schema))
            for service in services
        }
    finally:
        for engine in engines.values():
            engine.dispose()


@contextmanager
def _telling_of_namesakes(runs: SqlReconciliationRuns, now: Basis) -> Iterator[None]:
    """Let an error say that the run which is in the way is one of another configuration."""
    try:
        yield
    except AlreadyRunning as error:
        other = runs.running()
        earlier = None if other is None else basis.from_json(other.basis)
        if earlier is None or not basis.other_services(earlier, now):
            raise
        raise AlreadyRunning(
            f"{error}. It judges something else under the same name: give each configuration a "
            "`name` of its own in its file"
        ) from error
