"""`shieldtx db`: the tables of shieldtx in the service's database."""

from __future__ import annotations

from typing import Annotated

import typer

from shieldtx.cli.invocation import invocation
from shieldtx.cli.output import AsJson, print_json, print_line

commands = typer.Typer(
    help="Make, update and check shieldtx's tables in the service's database.",
    no_args_is_help=True,
)


@commands.command()
def upgrade(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(help="Which revision to go to.")] = "head",
    *,
    as_json: AsJson = False,
) -> None:
    """Make the tables, or bring them to this version of shieldtx.

    Safe at any time: all or nothing, and several processes may try at once. Run it before the new
    version of a service starts.

    Example: `shieldtx db upgrade`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL; SHIELDTX_DATABASE_SCHEMA for a schema of its
    own, SHIELDTX_SHARDS (fixed once the tables are made).
    """
    schema = invocation(context).service().schema
    before = schema.current()
    schema.upgrade(revision)
    after = schema.current()
    if as_json:
        print_json({"before": before, "revision": after})
    elif before == after:
        print_line(f"the tables are at revision {after} already")
    else:
        print_line(f"the tables are at revision {after} now (before: {before or 'none'})")


@commands.command()
def current(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Tell at which revision the tables are.

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

    Example: `shieldtx db check && shieldtx relay`

    Settings: SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA, SHIELDTX_SHARDS.
    """
    schema = invocation(context).service().schema
    schema.check()
    revision = schema.current()
    if as_json:
        print_json({"revision": revision, "fits": True})
    else:
        print_line(f"the tables fit (revision {revision})")
