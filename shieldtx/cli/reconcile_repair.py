"""`shieldtx reconcile repair`: repairs the mismatches that a run found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shieldtx.cli.found_rows import rows_of
from shieldtx.cli.output import AsJson, print_fields, print_json, print_table
from shieldtx.cli.prompts import confirm, current_operator
from shieldtx.cli.reconcile_config import Config, ending_as_error
from shieldtx.cli.reconcile_runs import Opened, ended_run, opened
from shieldtx.cli.repair_policy import policy_of
from shieldtx.errors import ConfigurationError
from shieldtx.logs.text import printable
from shieldtx.reconcile.repair.decisions import NAMED, REPAIRED, Policy
from shieldtx.reconcile.repair.listed_rows import ListedRow, listed_rows
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.repair.tally import RepairReport
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.reconciliation_runs import StoredRun


def repair(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of a run, or `last` for the latest ended run.")
    ],
    *,
    config: Config = None,
    verdict: Annotated[
        list[Verdict] | None,
        typer.Option(
            "--verdict",
            metavar="VERDICT",
            help=f"Repair only rows with this verdict; {' and '.join(NAMED)} only if named. "
            "Repeatable.",
            show_default=", ".join(REPAIRED),
            case_sensitive=False,
        ),
    ] = None,
    out_of_order: Annotated[
        bool,
        typer.Option(
            "--out-of-order",
            help="Repair missing, absent and failed events even if their groups receive later "
            "events of their keys first.",
        ),
    ] = False,
    restored: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE",
            help="Service that is new, or whose whole database was restored: events that its inbox "
            "lacks have no effect there either, so they are sent too. Repeatable.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Copy of the run's folder, if the original was moved.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the planned repairs, and write nothing.")
    ] = False,
    who: Annotated[
        str | None,
        typer.Option("--who", help="User recorded in the audit log.", show_default="user@host"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
) -> None:
    """Repair the mismatches that a run found, as far as no operator has to decide.

    Missing events are handed over to the groups that lack them, rows of dead processes are
    released, and pending rollback events are raised. A row that has changed since the run is left
    alone, so the command can be killed and run again, also twice at once. Every change is recorded
    in the shield_audit of its service.

    Exit status: 0 completed, 3 not completed, or the command line is invalid.

    Example: `shieldtx reconcile repair last --config reconcile.toml --dry-run`
    """
    with ending_as_error():
        with opened(context, config) as databases:
            ended = ended_run(databases, run)
            job = _Job(
                databases=databases,
                run=ended,
                copy=folder,
                named=verdict or [],
                out_of_order=out_of_order,
                restored=tuple(dict.fromkeys(restored or [])),
            )
            job.check()
            if not dry_run and not yes and not _agreed(job):
                raise ConfigurationError(
                    "aborted, nothing was repaired (use --yes to skip the prompt)"
                )
            report = job.carry_out(who=who or current_operator(), dry_run=dry_run)
        data = _data(job, report, dry_run=dry_run)
        if as_json:
            print_json(data)
        else:
            _show(data)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A run, its rows, and the repair to be made."""

    databases: Opened
    run: StoredRun
    copy: Path | None
    named: Sequence[Verdict]
    out_of_order: bool
    restored: Sequence[str]

    def check(self) -> None:
        """Raise ConfigurationError for a service that is not in the configuration."""
        for name in self.restored:
            if name not in self.services:
                raise ConfigurationError(
                    f"--restored {name}: {self.databases.configuration} names no such service, "
                    f"only {', '.join(self.services)}"
                )

    @property
    def services(self) -> tuple[str, ...]:
        """The names of the services whose databases the repair changes."""
        return tuple(service.name for service in self.databases.services)

    @property
    def question(self) -> str:
        """The question that an operator has to confirm."""
        found = f"what run {self.run.run_id} has found"
        whole = f", restored as a whole: {', '.join(self.restored)}" if self.restored else ""
        services = ", ".join(self.services)
        return f"Repair {found} in {services} ({self.databases.configuration}{whole})?"

    @property
    def policy(self) -> Policy:
        """What the repair may do, read again after the prompt, which may have taken hours."""
        return policy_of(
            self.databases,
            self.run,
            named=frozenset(self.named),
            out_of_order=self.out_of_order,
            restored=frozenset(self.restored),
        )

    def read(self) -> Iterator[ListedRow]:
        """Yield the rows to repair; raises ConfigurationError if another run has replaced them."""
        all_ = [verdict for verdict in Verdict if verdict.is_mismatch]
        rows = rows_of(self.run, self.copy)
        return listed_rows(rows, self.named or all_, run_id=self.run.run_id)

    def carry_out(self, *, who: str, dry_run: bool) -> RepairReport:
        """Run the repair, or plan it with `dry_run`."""
        return Repair(
            stores=self.databases.stores,
            policy=self.policy,
            run_id=self.run.run_id,
            who=who,
            dry_run=dry_run,
        ).run(self.read())


def _agreed(job: _Job) -> bool:
    """Show the plan and ask for confirmation, unless there is nothing to repair."""
    plan = job.carry_out(who="", dry_run=True)
    for (verdict, action), rows in plan.repaired.items():
        late = f", {rows.out_of_order} of them after later events of their keys"
        line = f"{action}: {rows.done} rows, {verdict}{late if rows.out_of_order else ''}"
        typer.echo(line, err=True)
    for (service, group), number in plan.handed_over.items():
        typer.echo(printable(f"to group {group} of {service}: {number} rows"), err=True)
    for (verdict, reason), number in plan.refused.items():
        typer.echo(f"left to you: {number} rows, {verdict}: {reason}", err=True)
    is_any = any(rows.done for rows in plan.repaired.values())
    return not is_any or confirm(printable(job.question))


def _data(job: _Job, report: RepairReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "run": job.run.run_id,
        "configuration": job.databases.configuration,
        "services": list(job.services),
        "restored": list(job.restored),
        "dry_run": dry_run,
        "repaired": [
            {
                "verdict": verdict.value,
                "action": action.value,
                "done": rows.done,
                "needless": rows.needless,
                "changed_since": rows.changed,
                "out_of_order": rows.out_of_order,
            }
            for (verdict, action), rows in report.repaired.items()
        ],
        "handed_over": [
            {"service": service, "group": group, "rows": rows}
            for (service, group), rows in report.handed_over.items()
        ],
        "not_repairable": [
            {"verdict": verdict.value, "rows": rows, "reason": reason}
            for (verdict, reason), rows in report.refused.items()
        ],
    }


def _show(data: dict[str, Any]) -> None:
    done = "would be done" if data["dry_run"] else "done"
    restored = [("restored as a whole", ", ".join(data["restored"]))] if data["restored"] else []
    print_fields(
        [
            ("configuration", data["configuration"]),
            ("services", ", ".join(data["services"])),
            *restored,
        ]
    )
    headings = ("verdict", "action", done, "needless", "changed since", "out of order")
    print_table(
        f"repair of run {data['run']}",
        headings,
        [list(entry.values()) for entry in data["repaired"]],
        right=headings[2:],
    )
    for entry in data["handed_over"]:
        handed_over = f"{entry['rows']} {'would be ' if data['dry_run'] else ''}handed over"
        print_fields([(f"to group {entry['group']} of {entry['service']}", handed_over)])
    for entry in data["not_repairable"]:
        print_fields([(f"not repaired: {entry['rows']} {entry['verdict']}", entry["reason"])])
