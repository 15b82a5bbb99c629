"""`shieldtx dead`: dead letters, which wait for an operator."""

from __future__ import annotations

from typing import Annotated

import typer

from shieldtx.cli import dead_letter_views
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.discards import discard
from shieldtx.cli.filters import Group, Topic
from shieldtx.cli.output import AsJson, print_fields, print_json, print_line
from shieldtx.cli.refusals import refuse
from shieldtx.cli.replays import replay
from shieldtx.cli.selection import (
    BizKey,
    ErrorPart,
    EventType,
    Key,
    Kind,
    Limit,
    Listed,
    ListedStatus,
    Since,
    selection_of,
)
from shieldtx.cli.waiting import has_given_up, record_of, rows_of, selected_in
from shieldtx.errors import ConfigurationError
from shieldtx.store.statements.row_filters import RowFilter

commands = typer.Typer(
    help="List, show, replay, refuse and discard dead letters; list given-up events.",
    no_args_is_help=True,
)


@commands.command("list")
def list_(
    context: typer.Context,
    *,
    status: ListedStatus = None,
    given_up: Annotated[
        bool, typer.Option("--given-up", help="List given-up events (MAX_RECONSUMED).")
    ] = False,
    group: Group = None,
    topic: Topic = None,
    event_type: EventType = None,
    kind: Kind = None,
    key: Key = None,
    biz_key: BizKey = None,
    error: ErrorPart = None,
    since: Since = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the rows that wait for an operator, or the given-up events; the latest first.

    FAILED: an event that could not be published. Its local rollback has run if the event type
    declares one, the kind is COMMIT, and no attempt is unconfirmed. DEAD: a rollback event whose
    compensation failed permanently, or an event (kind COMMIT) whose handler has used up its
    attempts and parks such events, without an effect and without a rollback event. PARKED: a record
    that its group could not handle, with its bytes. UNRESOLVED: a half message whose outcome is
    unknown, see `shieldtx half`. MAX_RECONSUMED: a given-up event, listed with --given-up. It waits
    for nothing: its rollback event was written with its state. Standard error has the line
    "more exist" if --limit ends the list.

    Example: `shieldtx dead list --group stock --biz-key 4711`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_TOPIC_PREFIX.
    """
    if given_up and status not in {None, Listed.MAX_RECONSUMED}:
        raise ConfigurationError(f"--given-up lists MAX_RECONSUMED, --status {status}: give one")
    selection = selection_of(
        status=Listed.MAX_RECONSUMED if given_up else status,
        group=group,
        topic=topic,
        event_type=event_type,
        kind=kind,
        key=key,
        biz_key=biz_key,
        error=error,
        since=since,
    )
    app = invocation(context).service()
    app.schema.check()
    waiting = selected_in(app, selection, limit=limit)
    found = [dead_letter_views.summary_of(row) for row in waiting]
    # Without filters the search ends at once, and with them it is worth its time after no result.
    is_asked = selection.status is None and (not found or selection.rows == RowFilter())
    if is_asked and has_given_up(app, selection):
        typer.echo("given-up events exist: --given-up lists them", err=True)
    if as_json:
        print_json(found)
        return
    for entry in found:
        for line in dead_letter_views.lines_of(entry):
            print_line(line)
    if not found:
        what = "given-up events" if selection.status == Listed.MAX_RECONSUMED else "dead letters"
        print_line(f"no {what}")


@commands.command()
def show(
    context: typer.Context,
    ref: Annotated[
        str,
        typer.Argument(
            help="Event id, or GROUP/TOPIC/PARTITION/OFFSET of a parked record, and the hash that "
            "`dead list` shows if several match."
        ),
    ],
    *,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show payload and header values unmasked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all fields of one event or parked record, in any state.

    Payloads and header values may be confidential: they are masked without --payload.

    Example: `shieldtx dead show 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de --payload`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    store = app.stores.dead_letters()
    if "/" in ref:
        found = [dead_letter_views.details_of_record(record_of(store, ref), unmasked=payload)]
    else:
        found = [
            dead_letter_views.details_of_letter(x, unmasked=payload) for x in rows_of(store, ref)
        ]
    if as_json:
        print_json(dead_letter_views.without_placeholders(found))
        return
    for entry in found:
        print_fields(entry.items())
        print_line("")


commands.command()(replay)
commands.command()(refuse)
commands.command()(discard)
