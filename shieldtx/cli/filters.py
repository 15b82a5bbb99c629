"""The filters --group and --topic of commands that list rows: a mistyped name is an error."""

from __future__ import annotations

from typing import Annotated

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.domain.events import logical_topic
from shieldtx.errors import ConfigurationError

Group = Annotated[
    str | None,
    typer.Option("--group", help="Filter by the consumer group that received the event."),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", help="Filter by topic: its logical name, or its name in Kafka."),
]


def topic_of(app: ShieldTx, name: str | None) -> str | None:
    """Return the logical topic that a filter names, also by its name in Kafka."""
    if name is None or name in _topics(app):
        return name
    return logical_topic(app.settings.topic_prefix, name) or name


def check_group(app: ShieldTx, group: str) -> None:
    """Refuse a group that neither the application nor any waiting row has.

    Without declarations, the name cannot be checked: a note on standard error reports that.
    """
    store = app.stores.dead_letters()
    if (
        store.latest(limit=1, group=group)
        or store.parked(limit=1, group=group, values=False)
        or store.given_up(limit=1, group=group)
    ):
        return
    _check(app, "--group", group, known=set(app.groups))


def check_topic(app: ShieldTx, topic: str) -> None:
    """Refuse a topic that the application does not declare; otherwise like `check_group`."""
    _check(app, "--topic", topic, known=_topics(app))


def check_event_type(app: ShieldTx, event_type: str, *, received: bool = False) -> None:
    """Refuse an event type that the application does not declare; otherwise like `check_group`.

    `received`: events of other services are listed too, whose types it may only handle.
    """
    known = {declared.name for declared in app.event_types}
    if received:
        known |= {name for group in app.groups.values() for name, _ in group.handled()}
    _check(app, "--type", event_type, known=known)


def _check(app: ShieldTx, option: str, name: str, *, known: set[str]) -> None:
    if name in known:
        return
    if not app.groups and not list(app.event_types):
        typer.echo(
            f"note: no row found; without --app, {option} {name} cannot be compared with the "
            "declared names",
            err=True,
        )
        return
    listed = ", ".join(sorted(known)) or "none"
    raise ConfigurationError(
        f"{option} {name!r}: the application does not declare this name, and no row in the states "
        f"that are listed has it (declared: {listed})"
    )


def _topics(app: ShieldTx) -> set[str]:
    """Return the logical topics that the application declares."""
    read = {topic for group in app.groups.values() for topic, _ in group.subscriptions()}
    return {declared.topic for declared in app.event_types} | read
