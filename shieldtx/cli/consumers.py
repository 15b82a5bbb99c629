"""`shieldtx consumers`: pause, resume and list the handlers of consumer groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.errors import FAILED
from shieldtx.cli.output import AsJson, moment, print_json, print_line
from shieldtx.cli.prompts import Who, current_operator, require_reason
from shieldtx.errors import ConfigurationError
from shieldtx.ports.pauses import ALL, Pause

commands = typer.Typer(
    help="Pause, resume and list the handlers of consumer groups.", no_args_is_help=True
)

Group = Annotated[str, typer.Argument(help="Consumer group.")]
Paused = Annotated[
    str | None,
    typer.Argument(
        help="Event type; without it, all types of the group, also those declared later."
    ),
]
Resumed = Annotated[
    str | None, typer.Argument(help="Event type; without it, all pauses of the group end.")
]
Reason = Annotated[str, typer.Option("--reason", help="Reason, recorded in the audit log.")]


@commands.command()
def pause(
    context: typer.Context,
    group: Group,
    event_type: Paused = None,
    *,
    reason: Reason = "paused by an operator",
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Pause the handlers of an event type, or of a whole group, until an operator resumes them.

    All consumers of the group start no further attempts within about a second; attempts in progress
    end. Events are still received: they wait in the inbox, in the order of their keys. Commit and
    rollback events of the type are paused. The operator and the reason are recorded in
    shield_audit, in the same transaction.

    Example: `shieldtx consumers pause stock orders.placed --reason "wrong prices since 14:00"`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    require_reason(reason)
    app = invocation(context).declared()
    app.schema.check()
    _require_handlers(app, group, event_type)
    operator = who or current_operator()
    app.stores.pause_admin().pause(group, event_type or ALL, who=operator, reason=reason)
    if as_json:
        print_json({"group": group, "event_type": event_type or ALL, "paused": True})
    else:
        print_line(f"{_named(group, event_type)} is paused")


@commands.command()
def resume(
    context: typer.Context,
    group: Group,
    event_type: Resumed = None,
    *,
    reason: Reason = "resumed by an operator",
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """End the pauses of an event type, or all pauses of a group: by operators, and by the breaker.

    Consumers continue within about a second, in the order of the keys. After a pause by the
    breaker, the handler is called again for many events at once, although no probe has succeeded.
    The exit status is 1 if nothing was paused. The operator and the reason are recorded in
    shield_audit, in the same transaction.

    Example: `shieldtx consumers resume stock orders.placed --reason "prices are right again"`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    require_reason(reason)
    app = invocation(context).service()
    app.schema.check()
    admin = app.stores.pause_admin()
    operator = who or current_operator()
    ended = admin.resume(group, event_type or ALL, who=operator, reason=reason)
    still = [p for p in admin.pauses().get(group, ()) if event_type is not None]
    covering = [p for p in still if p.event_type == ALL]
    if as_json:
        answer = {"group": group, "event_type": event_type or ALL, "ended": ended}
        print_json(answer | {"is_paused": bool(covering)})
    else:
        for line in _resumed(group, event_type, ended=ended, covering=covering):
            print_line(line)
        if not ended and app.groups and group not in app.groups:
            print_line(f"this application has no group {group} (groups: {_known(app)})")
    if not ended:
        raise typer.Exit(FAILED)


@commands.command("list")
def list_(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the paused handlers of all groups, with the reason and the user of each pause.

    Pauses by the user `breaker` end by themselves, when a probe succeeds: one attempt at one event,
    at growing intervals. Other pauses end with `shieldtx consumers resume`, and so do those of
    handlers that no release has any more.

    Example: `shieldtx consumers list --json`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    found = paused_handlers(app)
    if as_json:
        print_json(found)
        return
    for each in found:
        print_line(text_of(each))
    if not found:
        print_line("no handler is paused")


def paused_handlers(app: ShieldTx) -> list[dict[str, Any]]:
    """Return the pauses of all groups; the keys are stable."""
    return [
        _data(group, pause) | {"is_declared": _is_declared(app, group, pause)}
        for group, pauses in app.stores.pause_admin().pauses().items()
        for pause in pauses
    ]


def text_of(paused: dict[str, Any]) -> str:
    """Return a pause in one line."""
    types = "all types" if paused["event_type"] == ALL else paused["event_type"]
    kind = "" if paused["kind"] == ALL else f"{paused['kind']} of "
    end = "until a probe succeeds" if paused["has_probes"] else "until an operator resumes it"
    if paused["has_probes"] and paused["is_declared"] is False:
        resume = f"shieldtx consumers resume {paused['group']} {paused['event_type']}"
        end = f"without probes, because this application has no such handler: {resume}"
    return (
        f"group {paused['group']} is paused for {kind}{types} since {paused['since']} by "
        f"{paused['by']}, {end}: {paused['reason']}"
    )


def _data(group: str, pause: Pause) -> dict[str, Any]:
    return {
        "group": group,
        "event_type": pause.event_type,
        "kind": pause.kind,
        "since": moment(pause.since),
        "by": pause.by,
        "reason": pause.reason,
        "has_probes": pause.has_probes,
    }


def _is_declared(app: ShieldTx, group: str, pause: Pause) -> bool | None:
    """Whether the application has a handler that a pause covers; None: it lacks the group."""
    if (declared := app.groups.get(group)) is None:
        return None
    return any(pause.covers(handler) for handler in declared.handled())


def _require_handlers(app: ShieldTx, group: str, event_type: str | None) -> None:
    """Refuse a group or a type without handlers: a mistyped name would pause nothing."""
    declared = app.groups.get(group)
    if declared is None or not declared.handled():
        raise ConfigurationError(
            f"consumer group {group!r} has no handlers in this application (groups: {_known(app)})"
        )
    types = sorted({name for name, _ in declared.handled()})
    if event_type is not None and event_type not in types:
        raise ConfigurationError(
            f"consumer group {group!r} has no handler for {event_type!r} in this application "
            f"(types: {', '.join(types)})"
        )


def _known(app: ShieldTx) -> str:
    return ", ".join(sorted(app.groups)) or "none"


def _named(group: str, event_type: str | None) -> str:
    return f"group {group}" if event_type is None else f"{event_type} of group {group}"


def _resumed(group: str, event_type: str | None, *, ended: int, covering: list[Pause]) -> list[str]:
    name = _named(group, event_type)
    lines = [f"{name} is resumed" if ended else f"{name} was not paused by itself"]
    if covering:
        lines.append(
            f"the whole group is still paused, by {covering[0].by}: "
            f"shieldtx consumers resume {group}"
        )
    return lines
