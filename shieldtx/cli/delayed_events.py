"""`shieldtx delayed`: delayed events, to be listed, cancelled or rescheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer
from sqlalchemy.orm import Session

from shieldtx.app.application import ShieldTx
from shieldtx.cli import selection
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.durations import duration_of
from shieldtx.cli.errors import FAILED
from shieldtx.cli.filters import Topic, check_event_type, check_topic, topic_of
from shieldtx.cli.output import AsJson, age, moment, print_json, print_line, print_table
from shieldtx.cli.prompts import (
    Reason,
    Who,
    Yes,
    confirm_discard,
    current_operator,
    require_reason,
)
from shieldtx.cli.times import EXAMPLE, time_of
from shieldtx.domain.schedule import LEVELS
from shieldtx.errors import ConfigurationError, EventRefused
from shieldtx.ports.delayed_events import BizKey, Change, ChangeResult, DelayedEvent, EventRef
from shieldtx.settings.fields import Seconds

commands = typer.Typer(help="List, cancel and reschedule delayed events.", no_args_is_help=True)

_WHY_NOT = {
    ChangeResult.UNKNOWN: "there is no such event in this outbox",
    ChangeResult.NOT_DELAYED: "it waits for something else than its time",
    ChangeResult.UNCONFIRMED: "an unconfirmed attempt may have delivered it",
    ChangeResult.DUE: "its time has come, a relay may take it at any moment",
    ChangeResult.CLAIMED: "a relay is publishing it",
    ChangeResult.PUBLISHED: "it has been published",
    ChangeResult.CANCELLED: "it was cancelled or discarded before",
    ChangeResult.FAILED: "it has failed, see `shieldtx dead show`",
}

EventIds = Annotated[
    list[str] | None, typer.Argument(help="Event ids; events that are already due stay unchanged.")
]
Type = Annotated[
    str | None, typer.Option("--type", help="Event type of the event that --biz-key names.")
]
Key = Annotated[
    str | None, typer.Option("--biz-key", help="Business key of the event, in place of ids.")
]


@commands.command("list")
def list_(
    context: typer.Context,
    *,
    event_type: selection.EventType = None,
    topic: Topic = None,
    key: selection.Key = None,
    biz_key: selection.BizKey = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of events.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the delayed events, the next due first.

    No relay has claimed an overdue event yet. The list includes events that the broker refused when
    they were due, and that will be sent again.

    Example: `shieldtx delayed list --topic orders.unpaid`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    topic = topic_of(app, topic)
    with Session(app.engine) as session:
        found = app.delayed.waiting(
            session, limit=limit, event_type=event_type, topic=topic, key=key, biz_key=biz_key
        )
    if topic is not None and not found:
        check_topic(app, topic)
    if event_type is not None and not found:
        check_event_type(app, event_type)
    if as_json:
        print_json([_summary(event) for event in found])
    elif found:
        headings = ("event", "type", "key", "business key", "due", "in")
        print_table("delayed events", headings, map(_line, found), right=("in",))
    else:
        print_line("nothing waits for its time")


@commands.command()
def cancel(
    context: typer.Context,
    event_ids: EventIds = None,
    *,
    event_type: Type = None,
    biz_key: Key = None,
    reason: Reason,
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard events that are not due yet permanently: they are never published.

    The operator and the reason are recorded in shield_audit, in the same transaction. Events that
    are due, claimed or published stay unchanged: they are listed, and the exit status is 1.

    Example: `shieldtx delayed cancel --type orders.unpaid --biz-key 4711 --reason "paid in cash"`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    require_reason(reason)
    events = _named(event_ids, event_type, biz_key)
    app = invocation(context).service()
    app.schema.check()
    confirm_discard(len(events), yes=yes, done="cancelled")
    name = who or current_operator()
    changes = _change(app, events, lambda s, e: app.delayed.cancel(s, e, who=name, reason=reason))
    _print_changes(changes, "is cancelled", as_json=as_json)


@commands.command()
def reschedule(
    context: typer.Context,
    event_ids: EventIds = None,
    *,
    event_type: Type = None,
    biz_key: Key = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", help="New delay from now on: seconds, or with units (2h)."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help=f"New due time with its time zone: {EXAMPLE}."),
    ] = None,
    level: Annotated[
        int | None,
        typer.Option(
            "--level", min=1, max=len(LEVELS), help="New delay from now on, as RocketMQ's level."
        ),
    ] = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Reschedule events that are not due yet, by one of --delay, --at and --level.

    The operator and both times are recorded in shield_audit. Events that are due, claimed or
    published stay unchanged: they are listed, and the exit status is 1.

    Example: `shieldtx delayed reschedule 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de --delay PT2H`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    events = _named(event_ids, event_type, biz_key)
    if sum(value is not None for value in (delay, at, level)) != 1:
        raise ConfigurationError("give one of --delay, --at and --level")
    app = invocation(context).service()
    name = who or current_operator()
    when: dict[str, Any] = {
        "delay": None if delay is None else duration_of("--delay", delay, Seconds),
        "at": None if at is None else time_of("--at", at),
        "level": level,
    }

    def move(session: Session, event: EventRef) -> Change:
        try:
            return app.delayed.reschedule(session, event, who=name, **when)
        except EventRefused as error:
            raise ConfigurationError(f"--{error.field}: {error.problem}") from error

    _print_changes(_change(app, events, move), "is due", as_json=as_json)


def _named(
    ids: Sequence[str] | None, event_type: str | None, biz_key: str | None
) -> list[EventRef]:
    """Return the events that the command line names; raises ConfigurationError."""
    if bool(ids) == (biz_key is not None) or (event_type is None) != (biz_key is None):
        raise ConfigurationError("name events by their ids, or one by --type and --biz-key")
    if biz_key is not None and event_type is not None:
        return [BizKey(event_type, biz_key)]
    return [_event_id(ref) for ref in dict.fromkeys(ids or ())]


def _event_id(ref: str) -> UUID:
    try:
        return UUID(ref)
    except ValueError:
        raise ConfigurationError(
            f"{ref!r} is not an event id; see `shieldtx delayed list`"
        ) from None


def _change(
    app: ShieldTx, events: Sequence[EventRef], change: Callable[[Session, EventRef], Change]
) -> list[tuple[EventRef, Change]]:
    """Change the events that are not due yet, in one transaction."""
    app.schema.check()
    with Session(app.engine) as session, session.begin():
        return [(event, change(session, event)) for event in events]


def _print_changes(changes: Sequence[tuple[EventRef, Change]], done: str, *, as_json: bool) -> None:
    """Report the outcome of each event; the exit status is 1 unless all were changed."""
    if as_json:
        print_json([_answer(event, change) for event, change in changes])
    else:
        for event, change in changes:
            name = change.event_id or _name(event)
            if change.done:
                when = "" if done != "is due" else f" {moment(change.due_at)}"
                print_line(f"event {name} {done}{when}")
            else:
                print_line(f"event {name} is left as it is: {_WHY_NOT[change.result]}")
    if not all(change.done for _, change in changes):
        raise typer.Exit(FAILED)


def _answer(event: EventRef, change: Change) -> dict[str, Any]:
    return {
        "ref": _name(event),
        "event_id": None if change.event_id is None else str(change.event_id),
        "result": change.result.value,
        "status": None if change.status is None else change.status.value,
        "due_at": moment(change.due_at),
    }


def _name(event: EventRef) -> str:
    return f"{event.event_type} {event.biz_key}" if isinstance(event, BizKey) else str(event)


def _summary(event: DelayedEvent) -> dict[str, Any]:
    return {
        "ref": str(event.event_id),
        "event_type": event.event_type,
        "topic": event.topic,
        "key": event.key,
        "biz_key": event.biz_key,
        "created_at": moment(event.created_at),
        "due_at": moment(event.due_at),
        "attempts": event.attempts,
        "due_in_seconds": event.left.total_seconds(),
    }


def _line(event: DelayedEvent) -> tuple[object, ...]:
    left = age(event.left) if event.left >= timedelta(0) else "overdue"
    return (
        event.event_id,
        event.event_type,
        event.key,
        event.biz_key,
        moment(event.due_at),
        left,
    )
