"""`shieldtx reconcile repair` and `shieldtx reconcile runs`: what follows a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Engine, make_url

from shieldtx.app.reconciliation import stored_runs
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import AsJson, age, moment, print_fields, print_json, print_table
from shieldtx.cli.prompts import confirm, current_operator
from shieldtx.cli.reconcile_config import (
    Config,
    ending_as_error,
    load_configuration,
    require_tables,
)
from shieldtx.errors import ConfigurationError
from shieldtx.ports.repair import RepairStore
from shieldtx.reconcile.findings import OutputFolder, RunOutcome, from_json
from shieldtx.reconcile.listed_rows import ListedRow, listed_rows
from shieldtx.reconcile.repair import (
    PART_OF_RETENTION,
    REPAIRED,
    Policy,
    Repair,
    RepairReport,
    planned,
)
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.connections import open_engine
from shieldtx.store.reconciliation_runs import ABANDONED, SqlReconciliationRuns, StoredRun
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.tables import tables

_PATIENCE: Final = timedelta(minutes=1)
"""After which the database ends a transaction of a repair that has stopped."""


def repair(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The id of a run, or `last`: the latest ended one.")
    ],
    *,
    config: Config = None,
    verdict: Annotated[
        list[Verdict] | None,
        typer.Option(
            "--verdict",
            help="Only rows with this verdict; PARKED is replayed only if named. Repeatable.",
            show_default=", ".join(REPAIRED),
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A copy of the run's folder, if it is not where it was.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look what would be done, and write nothing.")
    ] = False,
    who: Annotated[
        str | None,
        typer.Option("--who", help="In whose name, for the audit.", show_default="user@host"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mend what a run of the reconciliation has found, as far as that can be done by itself.

    Missing events are published again under their id, what dead processes left is released, owed
    rollbacks are raised. A row that is no longer as the run saw it is left alone, so this can be
    killed and run again, and by two at once. Every change is in its service's shield_audit.

    The exit status: 0 it ran to its end, 3 it did not.

    Example: `shieldtx reconcile repair last --config reconcile.toml --dry-run`
    """
    with ending_as_error():
        with _opened(context, config) as opened:
            ended = _ended(opened.runs.find(run), run)
            rows = _rows_of(ended, folder)
            job = _Job(opened=opened, run=ended, rows=rows, named=verdict or [])
            if not dry_run and not yes and not _agreed(job):
                raise ConfigurationError("nothing was repaired (scripts say --yes)")
            report = job.carry_out(who=who or current_operator(), dry_run=dry_run)
        data = _data(job.run, report, dry_run=dry_run)
        if as_json:
            print_json(data)
        else:
            _show(data)


def runs(
    context: typer.Context,
    *,
    config: Config = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the runs of the reconciliation, the latest first.

    Example: `shieldtx reconcile runs --config reconcile.toml`
    """
    with ending_as_error():
        with _opened(context, config) as opened:
            found = [_run_data(run) for run in opened.runs.latest(limit=limit)]
        if as_json:
            print_json(found)
            return
        columns = ("run", "mode", "began", "took", "outcome", "mismatches", "folder", "who")
        print_table(
            f"runs of {opened.scope}",
            columns,
            [[run[column] for column in columns] for run in found],
            right=("mismatches",),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    """The services of a configuration, their databases open."""

    scope: str
    services: Sequence[ServiceDatabase]
    stores: Mapping[str, RepairStore]
    runs: SqlReconciliationRuns


@contextmanager
def _opened(context: typer.Context, config: Path | None) -> Iterator[_Opened]:
    configuration = load_configuration(config, invocation(context).app)
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
        yield _Opened(scope=configuration.scope, services=services, stores=stores, runs=runs)


def _engine(service: ServiceDatabase) -> Engine:
    return open_engine(make_url(service.url), idle=lambda: _PATIENCE)


def _ended(run: StoredRun | None, name: str) -> StoredRun:
    """Return the run; raises ConfigurationError for one that left nothing to repair."""
    if run is None:
        raise ConfigurationError(
            f"there is no run {name!r} of this configuration: see `shieldtx reconcile runs`"
        )
    if run.outcome is None:
        raise ConfigurationError(f"run {run.run_id} is still at work: repair when it has ended")
    if run.outcome in {RunOutcome.ERROR.name, ABANDONED}:
        raise ConfigurationError(
            f"run {run.run_id} broke off ({run.outcome}), so it is not known what is wrong: "
            "reconcile once more, or name an earlier run"
        )
    return run


def _rows_of(ended: StoredRun, copy: Path | None) -> Path:
    """Return where the rows of a run are; raises ConfigurationError where others are by now."""
    folder = OutputFolder(path=copy or Path(ended.folder))
    if not folder.findings.is_file():
        raise ConfigurationError(
            f"{folder.path} holds no findings: repair on the machine of {ended.who}, or give a "
            "copy of the run's folder with --folder"
        )
    found = from_json(folder.findings.read_bytes()).run_id
    if found != ended.run_id:
        raise ConfigurationError(
            f"{folder.path} holds the findings of run {found or 'that was not stored'} by now, not "
            f"those of {ended.run_id}: give a copy of its folder with --folder, or repair the "
            "later run"
        )
    return folder.rows


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A run, its rows, and what is to be repaired of them."""

    opened: _Opened
    run: StoredRun
    rows: Path
    named: Sequence[Verdict]

    @property
    def policy(self) -> Policy:
        """What may be done, by the retention of these services."""
        services = self.opened.services
        kept = [service.retention for service in services if service.retention is not None]
        young_since = self.run.at - min(kept) * PART_OF_RETENTION if kept else None
        names = frozenset(service.name for service in services)
        return Policy(services=names, named=frozenset(self.named), young_since=young_since)

    def read(self) -> Iterator[ListedRow]:
        """Yield the rows that it is about."""
        all_ = [verdict for verdict in Verdict if verdict.is_mismatch]
        return listed_rows(self.rows, self.named or all_)

    def carry_out(self, *, who: str, dry_run: bool) -> RepairReport:
        """Do it."""
        return Repair(
            stores=self.opened.stores,
            policy=self.policy,
            run_id=self.run.run_id,
            who=who,
            dry_run=dry_run,
        ).run(self.read())


def _agreed(job: _Job) -> bool:
    """Show what would be tried, and ask; nothing to do needs no answer."""
    plan = planned(job.read(), job.policy)
    for (verdict, action), rows in plan.repaired.items():
        typer.echo(f"{action}: {rows.done} rows, {verdict}", err=True)
    return not plan.repaired or confirm(f"Repair what run {job.run.run_id} has found?")


def _data(run: StoredRun, report: RepairReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "dry_run": dry_run,
        "repaired": [
            {
                "verdict": verdict.value,
                "action": action.value,
                "done": rows.done,
                "needless": rows.needless,
                "changed_since": rows.changed,
            }
            for (verdict, action), rows in report.repaired.items()
        ],
        "not_repairable": [
            {"verdict": verdict.value, "rows": rows, "reason": reason}
            for (verdict, reason), rows in report.refused.items()
        ],
    }


def _show(data: dict[str, Any]) -> None:
    done = "would be done" if data["dry_run"] else "done"
    headings = ("verdict", "action", done, "needless", "changed since")
    print_table(
        f"repair of run {data['run']}",
        headings,
        [list(entry.values()) for entry in data["repaired"]],
        right=headings[2:],
    )
    for entry in data["not_repairable"]:
        print_fields([(f"not repaired: {entry['rows']} {entry['verdict']}", entry["reason"])])


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
