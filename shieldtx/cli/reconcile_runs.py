"""`shieldtx reconcile runs`, and the lookup of stored runs for later commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Engine, make_url

from shieldtx.app.reconciliation import request_of, stored_runs
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import AsJson, age, moment, print_json, print_table
from shieldtx.cli.reconcile_config import (
    Config,
    ending_as_error,
    load_configuration,
    name_of,
    require_tables,
)
from shieldtx.errors import ConfigurationError
from shieldtx.ports.repair import RepairStore
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis, basis_of
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.connections import open_engine
from shieldtx.store.reconciliation_runs import ABANDONED, SqlReconciliationRuns, StoredRun
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.tables import tables

LAST: Final = "last"
"""In place of an id: the latest ended run of the configuration."""
_PATIENCE: Final = timedelta(minutes=1)
"""How long a repair that has stopped keeps its transaction before the database ends it."""


def runs(
    context: typer.Context,
    *,
    config: Config = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the runs of the reconciliation, the latest first.

    Example: `shieldtx reconcile runs --config reconcile.toml`
    """
    with ending_as_error():
        with opened(context, config) as found:
            listed = [_run_data(run) for run in found.runs.latest(limit=limit)]
            others = [] if listed else [runs.scope for runs in found.runs.of_other_scopes()]
        if others:
            typer.echo(
                f"note: {found.scope} has no runs; other configurations have some: "
                f"{', '.join(others)}. Name their file with --config",
                err=True,
            )
        if as_json:
            print_json(listed)
            return
        columns = ("run", "mode", "began", "took", "outcome", "mismatches", "folder", "who")
        print_table(
            f"runs of {found.scope}",
            columns,
            [[run[column] for column in columns] for run in listed],
            right=("mismatches",),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The services of a configuration, with open databases."""

    scope: str
    configuration: str
    """The file or the application that names the services."""
    services: Sequence[ServiceDatabase]
    stores: Mapping[str, RepairStore]
    runs: SqlReconciliationRuns
    request: ReconcileRequest
    """The request of a run of this configuration."""

    @property
    def judged(self) -> Basis:
        """The basis of a run of this configuration."""
        return basis_of(self.request, {})


@contextmanager
def opened(context: typer.Context, config: Path | None) -> Iterator[Opened]:
    """Open the databases of a configuration; raises ShieldTxError if one cannot be used."""
    invoked = invocation(context)
    configuration = load_configuration(config, invoked)
    services = configuration.services
    require_tables(services)
    with ExitStack() as stack:
        stores: dict[str, RepairStore] = {}
        for service in services:
            engine = _engine(service)
            stack.callback(engine.dispose)
            stores[service.name] = SqlRepairStore(
                engine, tables(service.schema), source=service.name
            )
        runs = stack.enter_context(stored_runs(configuration))
        yield Opened(
            scope=configuration.scope,
            configuration=name_of(config, invoked.app),
            services=services,
            stores=stores,
            runs=runs,
            request=request_of(configuration, Path()),
        )


def _engine(service: ServiceDatabase) -> Engine:
    return open_engine(make_url(service.url), idle=lambda: _PATIENCE)


def ended_run(opened: Opened, name: str) -> StoredRun:
    """Return the run; raises ConfigurationError for a run that left nothing to repair."""
    if name == LAST:
        ended = opened.runs.ended()
        # If all runs are of other configurations, the error names the differences of the latest.
        run = next((run for run in ended if not _of_others(opened, run)), next(iter(ended), None))
    else:
        run = opened.runs.find(name)
    if run is None:
        raise ConfigurationError(
            f"there is no run {name!r} of this configuration: see `shieldtx reconcile runs`"
        )
    if others := _of_others(opened, run):
        raise ConfigurationError(
            f"run {run.run_id} is of another configuration "
            f"({'; '.join(others)}): reconcile once more, or name its file"
        )
    if run.outcome is None:
        raise ConfigurationError(f"run {run.run_id} is still running: repair when it has ended")
    if run.outcome in {RunOutcome.ERROR.name, ABANDONED}:
        raise ConfigurationError(
            f"run {run.run_id} broke off ({run.outcome}), so it is not known what is wrong: "
            "reconcile once more, or name an earlier run"
        )
    return run


def _of_others(opened: Opened, run: StoredRun) -> list[str]:
    """Return how a run's basis differs; empty also if unknown, as after an upgrade."""
    judged = basis.from_json(run.basis)
    return [] if judged is None else basis.other_services(judged, opened.judged)


def _run_data(run: StoredRun) -> dict[str, Any]:
    mismatches = sum(rows for name, rows in run.totals.items() if name in _MISMATCHES)
    return {
        "run": run.run_id,
        "mode": run.mode,
        "began": moment(run.started_at),
        "ended": moment(run.finished_at),
        "took": age(_end(run) - run.started_at),
        "outcome": run.outcome or ("DIED" if run.dead else "RUNNING"),
        "good": run.good,
        "watermarks": {name: moment(when) for name, when in run.watermarks.items()},
        "totals": dict(run.totals),
        "mismatches": mismatches,
        "folder": run.folder,
        "who": run.who,
        "problem": run.problem or None,
    }


def _end(run: StoredRun) -> datetime:
    return run.finished_at or run.at


_MISMATCHES: Final = frozenset(verdict.value for verdict in Verdict if verdict.is_mismatch)
