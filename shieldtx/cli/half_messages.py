"""`shieldtx half`: half messages, and the decisions of operators about them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from shieldtx.cli.app_loading import invocation
from shieldtx.cli.dead_letter_views import masked, without_placeholders
from shieldtx.cli.errors import FAILED
from shieldtx.cli.filters import Topic, check_topic, topic_of
from shieldtx.cli.output import AsJson, moment, print_fields, print_json, print_line
from shieldtx.cli.prompts import Who, Yes, confirm, current_operator
from shieldtx.cli.selection import BizKey, EventType, Key
from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.errors import ConfigurationError
from shieldtx.store.half_message_admin import HalfMessage, SqlHalfMessageAdmin, require_open

commands = typer.Typer(
    help="List and show half messages, and resolve those whose outcome is unknown.",
    no_args_is_help=True,
)

EventIds = Annotated[
    list[str], typer.Argument(help="Ids of half messages; all are resolved, or none.")
]


@commands.command("list")
def list_(
    context: typer.Context,
    *,
    topic: Topic = None,
    event_type: EventType = None,
    key: Key = None,
    biz_key: BizKey = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of half messages per state.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List half messages, the UNRESOLVED before the HALF.

    UNRESOLVED: its check-backs are used up or it is too old, and the outcome of its local
    transaction is unknown. HALF: it waits for the outcome from its application, or for its
    check-backs.

    Example: `shieldtx half list --json`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    topic = topic_of(app, topic)
    messages = app.stores.half_message_admin().latest(
        limit=limit, topic=topic, event_type=event_type, key=key, biz_key=biz_key
    )
    found = [_summary(message) for message in messages]
    if topic is not None and not found:
        check_topic(app, topic)
    if as_json:
        print_json(found)
        return
    for summary in found:
        for line in _lines(summary):
            print_line(line)
    if not found:
        print_line("there is no half message")


@commands.command()
def show(
    context: typer.Context,
    event_id: Annotated[str, typer.Argument(help="Id of a half message.")],
    *,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show payload and header values unmasked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all fields of one half message, in any state.

    Its payload and header values may be confidential: they are masked without --payload.

    Example: `shieldtx half show 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    details = _details(_found(app.stores.half_message_admin(), event_id), unmasked=payload)
    if as_json:
        print_json(without_placeholders(details))
    else:
        print_fields(details.items())


@commands.command()
def commit(
    context: typer.Context,
    event_ids: EventIds,
    *,
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send half messages whose local transactions are known to have committed.

    They are queued from now on; a chosen delay begins now. The operator is recorded in
    shield_audit, in the same transaction. With `--app`, the barrier of the event type is checked
    first, and a decision that contradicts it is refused.

    Example: `shieldtx half commit 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    _decide(context, event_ids, LocalOutcome.COMMIT, who=who, yes=yes, as_json=as_json)


@commands.command()
def rollback(
    context: typer.Context,
    event_ids: EventIds,
    *,
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard half messages whose local transactions are known not to have committed.

    The barrier is closed first: a later local transaction fails, and the command refuses if the
    transaction has committed or is in progress. Barriers in other databases need `--app`. The
    operator is recorded in shield_audit, in the same transaction.

    Example: `shieldtx half rollback 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    _decide(context, event_ids, LocalOutcome.ROLLBACK, who=who, yes=yes, as_json=as_json)


_WILL_BE = {LocalOutcome.COMMIT: "sent", LocalOutcome.ROLLBACK: "discarded permanently"}
_IS = {LocalOutcome.COMMIT: "is queued", LocalOutcome.ROLLBACK: "is discarded"}


def _decide(
    context: typer.Context,
    event_ids: list[str],
    outcome: LocalOutcome,
    *,
    who: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    app = invocation(context).service()
    app.schema.check()
    admin = app.stores.half_message_admin()
    chosen = [_found(admin, event_id) for event_id in dict.fromkeys(event_ids)]
    for message in chosen:
        require_open(message, message.status)
    for message in chosen:
        typer.echo(_warning(message, outcome), err=True)
    if not yes and not confirm(f"{outcome.capitalize()}?"):
        typer.echo(
            "Aborted: nothing was committed or rolled back (use --yes to skip the prompt)", err=True
        )
        raise typer.Exit(FAILED)
    admin.decide(chosen, outcome, who=who or current_operator())
    if as_json:
        print_json([_summary(message) for message in chosen])
        return
    for message in chosen:
        print_line(f"{message} {_IS[outcome]}")


def _found(admin: SqlHalfMessageAdmin, ref: str) -> HalfMessage:
    try:
        event_id = UUID(ref)
    except ValueError:
        raise ConfigurationError(f"{ref!r} is not an event id; see `shieldtx half list`") from None
    found = admin.find(event_id)
    if found is None:
        raise ConfigurationError(f"there is no half message {event_id} in this database")
    return found


def _warning(message: HalfMessage, outcome: LocalOutcome) -> str:
    """Return the risks of a decision, for an operator."""
    still = (
        "; it is still checked, and its local transaction may be in flight"
        if message.status is OutboxStatus.HALF
        else ""
    )
    return (
        f"warning: {message} ({message.envelope.type}) is {message.status}{still}. It will be "
        f"{_WILL_BE[outcome]}, unless a barrier that this command can read shows the other "
        "outcome: find out first what its local transaction did."
    )


def _summary(message: HalfMessage) -> dict[str, Any]:
    """Return the fields that a list shows; the keys are stable."""
    event = message.envelope
    return {
        "status": message.status.value,
        "ref": str(event.id),
        "source": event.source,
        "topic": event.topic,
        "event_type": event.type,
        "key": event.key,
        "checks": message.checks,
        "time": moment(event.time),
        "next_check": moment(message.check_at),
        "settled": moment(message.settled_at),
        "reason": message.reason,
    }


def _details(message: HalfMessage, *, unmasked: bool) -> dict[str, Any]:
    event = message.envelope
    return _summary(message) | {
        "delay_seconds": None if message.delay is None else message.delay.total_seconds(),
        "at": moment(message.at),
        "operation": event.operation.value,
        "biz_key": event.biz_key,
        "traceparent": event.traceparent,
        "dataschema": event.dataschema,
        "headers": {
            name: value if unmasked else masked(value.encode())
            for name, value in event.headers.items()
        },
        "payload": event.payload if unmasked else masked(event.payload.encode()),
        "payload_bytes": len(event.payload.encode()),
    }


def _lines(summary: dict[str, Any]) -> list[str]:
    """Return a summary in lines; the first contains the argument of `half show`."""
    key = "" if summary["key"] is None else f", key {summary['key']}"
    lines = [
        f"{summary['status']:<10} {summary['ref']}  {summary['time']}",
        f"           {summary['event_type']}{key}, checks {summary['checks']}",
    ]
    return [*lines, f"           {summary['reason']}"] if summary["reason"] else lines
