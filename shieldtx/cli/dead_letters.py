"""`shieldtx dead`: dead letters, which wait for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from shieldtx.cli import dead_letter_views
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.discards import discard
from shieldtx.cli.errors import FAILED
from shieldtx.cli.filters import Group, Topic
from shieldtx.cli.output import AsJson, print_fields, print_json, print_line
from shieldtx.cli.prompts import Who, Yes, confirm, current_operator
from shieldtx.cli.waiting import (
    Limit,
    Status,
    in_group,
    record_of,
    rows_of,
    waiting_in,
)
from shieldtx.errors import ConfigurationError, IllegalTransition
from shieldtx.store.dead_letters import DeadLetter

commands = typer.Typer(
    help="List, show, replay and discard FAILED events, DEAD compensations and parked records.",
    no_args_is_help=True,
)


@commands.command("list")
def list_(
    context: typer.Context,
    *,
    status: Status = None,
    group: Group = None,
    topic: Topic = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the dead letters, the latest first.

    FAILED: an event that could not be published. Its local rollback has run if the event type
    declares one, the kind is COMMIT, and no attempt is unconfirmed. DEAD: a rollback event whose
    compensation failed permanently. PARKED: a record that is not an event, with its bytes. The last
    line on standard error is "more exist" if --limit ends the list.

    Example: `shieldtx dead list --group stock`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_TOPIC_PREFIX.
    """
    app = invocation(context).service()
    app.schema.check()
    waiting = waiting_in(app, status=status, group=group, topic=topic, limit=limit)
    found = [dead_letter_views.summary_of(row) for row in waiting]
    if as_json:
        print_json(found)
        return
    for entry in found:
        for line in dead_letter_views.lines_of(entry):
            print_line(line)
    if not found:
        print_line("no dead letters")


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
        print_json(found)
        return
    for entry in found:
        print_fields(entry.items())
        print_line("")


@commands.command()
def replay(
    context: typer.Context,
    event_ids: Annotated[
        list[str], typer.Argument(help="Event ids; all events are replayed, or none.")
    ],
    *,
    group: Group = None,
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replay FAILED events and DEAD compensations, with all their attempts.

    The operator is recorded in shield_audit, in the same transaction. The local rollback of a
    FAILED event may have run, and later events of its key may have been published. Replay an event
    only if the service's data require it to be sent anyway. A warning appears if this
    database has a rollback event of it, or if it may have been delivered longer ago than
    SHIELDTX_RETENTION_INBOX: a group may then apply it twice.

    Example: `shieldtx dead replay 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_RETENTION_INBOX.
    """
    app = invocation(context).service()
    app.schema.check()
    store = app.stores.dead_letters()
    chosen = [_chosen(rows_of(store, ref), group) for ref in dict.fromkeys(event_ids)]
    failed = [letter for letter in chosen if letter.group is None]
    taken_back = store.taken_back(failed)
    kept_since = datetime.now(UTC) - app.settings.retention_inbox
    for letter in failed:
        warning = dead_letter_views.warning_of(
            letter, taken_back=letter.envelope.id in taken_back, kept_since=kept_since
        )
        typer.echo(warning, err=True)
    if failed and not yes and not confirm("Replay?"):
        typer.echo("Aborted: nothing was replayed (use --yes to skip the prompt)", err=True)
        raise typer.Exit(FAILED)
    store.replay(chosen, who=who or current_operator())
    if as_json:
        print_json([dead_letter_views.summary_of_letter(letter) for letter in chosen])
        return
    for letter in chosen:
        print_line(f"{letter} is queued again")


commands.command()(discard)


def _chosen(rows: Sequence[DeadLetter], group: str | None) -> DeadLetter:
    """Return the only row of an event that can be replayed."""
    wanted = in_group(rows, group)
    possible = [row for row in wanted if row.can_be_replayed]
    if not possible:
        states = ", ".join(f"{row} is {row.status}" for row in wanted)
        raise IllegalTransition(f"{states}: only FAILED and DEAD events can be replayed")
    if len(possible) > 1:
        named = ", ".join(str(row) for row in possible)
        raise ConfigurationError(f"choose one with --group: {named}")
    return possible[0]
