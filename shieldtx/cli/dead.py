"""`shieldtx dead`: what failed for good and waits for a person."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

import typer

from shieldtx.cli import letters
from shieldtx.cli.failures import FAILED
from shieldtx.cli.invocation import invocation
from shieldtx.cli.output import AsJson, print_fields, print_json, print_line
from shieldtx.cli.persons import operator, says_yes
from shieldtx.errors import ConfigurationError, IllegalTransition
from shieldtx.events import physical_topic
from shieldtx.states import TxKind
from shieldtx.store.dead_letters import DeadLetter, ParkedRecord, SqlDeadLetters

commands = typer.Typer(
    help="List, show and replay FAILED events, DEAD compensations and parked records.",
    no_args_is_help=True,
)

_NUMBER = re.compile("[0-9]{1,18}")

Group = Annotated[
    str | None, typer.Option("--group", help="Only what this consumer group received.")
]


@commands.command("list")
def list_(
    context: typer.Context,
    *,
    group: Group = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this logical topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of each kind.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what waits for a person, the latest first.

    FAILED: an event that could not be published; its local rollback has run. DEAD: a rollback whose
    compensation failed for good. PARKED: a record that is no event, with its bytes.

    Example: `shieldtx dead list --group stock`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_TOPIC_PREFIX.
    """
    app = invocation(context).service()
    app.schema.check()
    prefix = app.settings.topic_prefix
    topics = None if topic is None else [physical_topic(prefix, topic, kind) for kind in TxKind]
    store = app.dead_letters()
    parked = store.parked(limit=limit, group=group, topics=topics, values=False)
    found = [
        *map(letters.summary_of_letter, store.latest(limit=limit, group=group, topic=topic)),
        *map(letters.summary_of_record, parked),
    ]
    if as_json:
        print_json(found)
        return
    for entry in found:
        for line in letters.lines_of(entry):
            print_line(line)
    if not found:
        print_line("nothing waits for a person")


@commands.command()
def show(
    context: typer.Context,
    ref: Annotated[
        str, typer.Argument(help="An event's id, or GROUP/TOPIC/PARTITION/OFFSET of a record.")
    ],
    *,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show payload and header values unmasked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all about one event or parked record, whatever its state.

    Payloads, and the values of headers, may hold what not everybody should see: they are masked
    unless you ask for them.

    Example: `shieldtx dead show 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de --payload`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    store = app.dead_letters()
    if "/" in ref:
        found = [letters.details_of_record(_record(store, ref), unmasked=payload)]
    else:
        found = [letters.details_of_letter(x, unmasked=payload) for x in _rows(store, ref)]
    if as_json:
        print_json(found)
        return
    for entry in found:
        print_fields(entry.items())
        print_line("")


@commands.command()
def replay(
    context: typer.Context,
    event_ids: Annotated[list[str], typer.Argument(help="Events, all or none of which go.")],
    *,
    group: Group = None,
    who: Annotated[
        str | None,
        typer.Option("--who", help="In whose name, for the audit.", show_default="user@host"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give FAILED events and DEAD compensations all their attempts again.

    Who did it is written into shield_audit, in the same transaction. A FAILED event's local
    rollback has run already, and later events of its key may have been published: replay it when
    the service's data say that it should be sent all the same.

    Example: `shieldtx dead replay 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    store = app.dead_letters()
    chosen = [_chosen(_rows(store, ref), group) for ref in dict.fromkeys(event_ids)]
    failed = [letter for letter in chosen if letter.group is None]
    for letter in failed:
        typer.echo(letters.warning_of(letter), err=True)
    if failed and not yes and not says_yes("Replay?"):
        typer.echo("nothing was replayed (scripts say --yes)", err=True)
        raise typer.Exit(FAILED)
    store.replay(chosen, who=who or operator())
    if as_json:
        print_json([letters.summary_of_letter(letter) for letter in chosen])
        return
    for letter in chosen:
        print_line(f"{letter} is in line again")


def _rows(store: SqlDeadLetters, ref: str) -> list[DeadLetter]:
    try:
        event_id = UUID(ref)
    except ValueError:
        raise ConfigurationError(f"{ref!r} is no event id; see `shieldtx dead list`") from None
    found = list(store.find(event_id))
    if not found:
        raise ConfigurationError(f"there is no event {event_id} in this database")
    return found


def _record(store: SqlDeadLetters, ref: str) -> ParkedRecord:
    parts = ref.split("/")
    if len(parts) != len(letters.RECORD_REF) or not all(map(_NUMBER.fullmatch, parts[2:])):
        raise ConfigurationError(f"{ref!r}: write it as {'/'.join(letters.RECORD_REF)}")
    group, topic, partition, offset = parts
    found = store.find_parked(
        group=group, topic=topic, partition=int(partition), offset=int(offset)
    )
    if found is None:
        raise ConfigurationError(f"there is no parked record {ref} in this database")
    return found


def _chosen(rows: list[DeadLetter], group: str | None) -> DeadLetter:
    """Return the one row of an event that can be replayed."""
    wanted = [row for row in rows if group is None or row.group == group]
    possible = [row for row in wanted if row.can_be_replayed]
    if not wanted:
        raise ConfigurationError(f"group {group} has not received event {rows[0].envelope.id}")
    if not possible:
        states = ", ".join(f"{row} is {row.status}" for row in wanted)
        raise IllegalTransition(f"{states}: only FAILED and DEAD events can be replayed")
    if len(possible) > 1:
        named = ", ".join(str(row) for row in possible)
        raise ConfigurationError(f"choose one with --group: {named}")
    return possible[0]
