"""`shieldtx db`: the tables of shieldtx in the service's database."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

import typer

from shieldtx.cli.app_loading import invocation
from shieldtx.cli.errors import FAILED
from shieldtx.cli.option_places import is_on_the_command_line
from shieldtx.cli.output import AsJson, print_json, print_line, print_progress
from shieldtx.cli.prompts import confirm
from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.store.downgrade_plan import COUNTED, DowngradePlan
from shieldtx.store.migration_scripts import BASE
from shieldtx.store.schema import Schema
from shieldtx.store.upgrades import PATIENCE

commands = typer.Typer(
    help="Create, upgrade, downgrade and check shieldtx's tables in the service's database.",
    no_args_is_help=True,
)

_PATIENCE_S: Final = PATIENCE.total_seconds()

Patience = Annotated[
    float,
    typer.Option(help="Maximum wait in seconds for transactions that lock the tables.", min=1),
]


@commands.command()
def upgrade(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(help="Target revision; with --sql also START:TARGET.")
    ] = "head",
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL and do not connect to the database.")
    ] = False,
    server_version: Annotated[
        int | None,
        typer.Option(
            help="Major version of the PostgreSQL server, for SQL that depends on it.", min=1
        ),
    ] = None,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Create the tables, or upgrade them to this version of shieldtx.

    The service may run meanwhile, and several processes may upgrade at once. Each revision is one
    transaction. It releases a lock that it cannot get within 0.3 s and tries again, so that writers
    wait for less than a second. Indexes of large tables are built concurrently with writers.
    Standard error shows the steps. Run an interrupted upgrade again: it continues where it stopped.
    Upgrade before the new version of a service starts, over a direct connection, not through
    PgBouncer.

    With --sql, the command prints the SQL of the upgrade for an administrator, who runs it with
    psql. It begins with new tables, or with the tables at the revision START: `0017:head`. The SQL
    refuses a database where the tables are not at this revision.

    Example: `shieldtx db upgrade`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL; SHIELDTX_DATABASE_SCHEMA for a schema of its
    own, SHIELDTX_SHARDS for the number of shards of new tables (existing tables keep theirs).
    """
    schema = invocation(context).service().schema
    if sql:
        if is_on_the_command_line(context, "patience"):
            raise ConfigurationError(
                "--patience: the SQL has its own limits; leave it out with --sql"
            )
        _print_sql(schema, revision, server_version, as_json=as_json)
        return
    if server_version is not None or ":" in revision:
        what = "--server-version" if server_version is not None else revision
        raise ConfigurationError(f"{what}: only with --sql, which prints the SQL of an upgrade")
    before = schema.current()
    schema.upgrade(revision, patience=timedelta(seconds=patience), notice=print_progress)
    after = schema.current()
    if before == after and not _leads_to(revision, after):
        raise ConfigurationError(
            f"the tables are at revision {after or BASE}, and this command does not downgrade them "
            f"to {revision}: run `shieldtx db downgrade {revision}`"
        )
    _warn_of_older(schema)
    if as_json:
        print_json({"before": before, "revision": after})
    elif before == after:
        print_line(f"the tables are at revision {after or 'base'} already")
    else:
        print_line(f"the tables are at revision {after} now (before: {before or 'none'})")


def _print_sql(schema: Schema, revision: str, server_version: int | None, *, as_json: bool) -> None:
    start, has_start, target = revision.rpartition(":")
    script = schema.upgrade_sql(
        target, start=start if has_start else BASE, server_version=server_version
    )
    if as_json:
        print_json({"sql": script})
        return
    for line in script.splitlines():
        print_line(line)


def _leads_to(revision: str, current: str | None) -> bool:
    """Whether a revision is the current one; Alembic accepts the start of its name."""
    return revision in {"head", "heads"} or (current or "base").startswith(revision)


def _warn_of_older(schema: Schema) -> None:
    """Print a warning if workers of this version would refuse the tables."""
    try:
        schema.check_tables()
    except SchemaMismatch as error:
        print_progress(f"warning: {error}")


@commands.command()
def downgrade(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(help="Target revision; base drops all tables.")],
    *,
    patience: Patience = _PATIENCE_S,
    yes: Annotated[
        bool, typer.Option("--yes", help="Skip the confirmation prompt, and accept lost rows.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take the tables back to an older revision, for an older version of shieldtx.

    Stop the relays, consumers and writers first. The command shows what will be dropped, and asks
    for confirmation. If dropped tables contain rows, it refuses without --yes. It always refuses,
    and changes nothing, if other rows would be lost or could not be handled by the older version:
    the error names them and the remedy. Locks and --patience are as for `shieldtx db upgrade`. Some
    steps build an index in their transaction, and writers wait for it.

    Example: `shieldtx db downgrade 0016`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    schema = invocation(context).service().schema
    plan = schema.plan_downgrade(revision)
    if plan.steps:
        _confirm_downgrade(plan, revision, yes=yes)
        schema.downgrade(revision, patience=timedelta(seconds=patience), notice=print_progress)
    after = schema.current()
    if as_json:
        print_json({"before": plan.before, "revision": after, "lost": dict(plan.lost)})
    elif plan.before is None:
        print_line("there are no tables")
    elif not plan.steps:
        print_line(f"the tables are at revision {after} already")
    elif after is None:
        print_line(f"the tables are dropped (before: {plan.before})")
    else:
        print_line(f"the tables are at revision {after} now (before: {plan.before})")


def _confirm_downgrade(plan: DowngradePlan, revision: str, *, yes: bool) -> None:
    """Show the plan, and ask; raise ConfigurationError for lost rows without --yes."""
    for step, added in plan.steps.items():
        print_progress(f"takes back revision {step}: {added}")
    for table, rows in plan.tables.items():
        print_progress(f"drops the table {table}{f' with {_rows(rows)}' if rows else ''}")
    for column in plan.columns:
        print_progress(f"drops the column {column}")
    if yes:
        return
    if plan.lost:
        named = ", ".join(f"{table} ({_rows(rows)})" for table, rows in plan.lost.items())
        raise ConfigurationError(
            f"the downgrade to {revision} would lose the rows of {named}: keep a copy of what you "
            "need, and run it again with --yes"
        )
    if not confirm(f"Take the tables back from {plan.before} to {revision}?"):
        typer.echo("Aborted: nothing was changed (use --yes to skip the prompt)", err=True)
        raise typer.Exit(FAILED)


def _rows(count: int) -> str:
    if count > COUNTED:
        return f"more than {COUNTED:,} rows"
    return f"{count:,} {'row' if count == 1 else 'rows'}"


@commands.command()
def current(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show the current revision of the tables.

    Example: `shieldtx db current`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    revision = invocation(context).service().schema.current()
    if as_json:
        print_json({"revision": revision})
    else:
        print_line(revision or "none: there are no tables yet")


@commands.command()
def check(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Check that the tables fit this version of shieldtx and its settings; exit with 2 if not.

    The check includes the sequences: after a switch-over by logical replication, they may be below
    the ids of existing rows. The error names the statements that set them.

    Example: `shieldtx db check && shieldtx relay`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA, SHIELDTX_SHARDS.
    """
    schema = invocation(context).service().schema
    schema.check()
    schema.check_sequences()
    revision = schema.current()
    if as_json:
        print_json({"revision": revision, "fits": True})
    else:
        print_line(f"the tables fit (revision {revision})")
