"""`shieldtx db`: the tables of shieldtx in the service's database."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import AsJson, print_json, print_line, print_progress
from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.store.schema import Schema
from shieldtx.store.upgrades import PATIENCE

commands = typer.Typer(
    help="Create, upgrade and check shieldtx's tables in the service's database.",
    no_args_is_help=True,
)


@commands.command()
def upgrade(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(help="Target revision.")] = "head",
    *,
    patience: Annotated[
        float,
        typer.Option(help="Maximum wait in seconds for transactions that lock the tables.", min=1),
    ] = PATIENCE.total_seconds(),
    as_json: AsJson = False,
) -> None:
    """Create the tables, or upgrade them to this version of shieldtx.

    The service may run meanwhile, and several processes may upgrade at once. Each revision is one
    transaction. It releases a lock that it cannot get within 0.3 s and tries again, so that writers
    wait for less than a second. Indexes of large tables are built concurrently with writers.
    Standard error shows the steps. Run an interrupted upgrade again: it continues where it stopped.
    Upgrade before the new version of a service starts, over a direct connection, not through
    PgBouncer.

    Example: `shieldtx db upgrade`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL; SHIELDTX_DATABASE_SCHEMA for a schema of its
    own, SHIELDTX_SHARDS for the number of shards of new tables (existing tables keep theirs).
    """
    schema = invocation(context).service().schema
    before = schema.current()
    schema.upgrade(revision, patience=timedelta(seconds=patience), notice=print_progress)
    after = schema.current()
    if before == after and not _leads_to(revision, after):
        raise ConfigurationError(
            f"the tables are at revision {after or 'base'}, and this command does not downgrade "
            f"them to {revision}: a downgrade is `shield.schema.downgrade({revision!r})` in Python"
        )
    _warn_of_older(schema)
    if as_json:
        print_json({"before": before, "revision": after})
    elif before == after:
        print_line(f"the tables are at revision {after} already")
    else:
        print_line(f"the tables are at revision {after} now (before: {before or 'none'})")


def _leads_to(revision: str, current: str | None) -> bool:
    """Whether a revision is the current one; Alembic accepts the start of its name."""
    return revision in {"head", "heads"} or (current or "").startswith(revision)


def _warn_of_older(schema: Schema) -> None:
    """Print a warning if workers of this version would refuse the tables."""
    try:
        schema.check_tables()
    except SchemaMismatch as error:
        print_progress(f"warning: {error}")


@commands.command()
def current(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show the current revision of the tables.

    Example: `shieldtx db current`

    Settings: SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
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

    Settings: SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA, SHIELDTX_SHARDS.
    """
    schema = invocation(context).service().schema
    schema.check()
    schema.check_sequences()
    revision = schema.current()
    if as_json:
        print_json({"revision": revision, "fits": True})
    else:
        print_line(f"the tables fit (revision {revision})")
