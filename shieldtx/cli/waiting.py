"""Rows that wait for an operator, and the options that select them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli import dead_letter_views
from shieldtx.cli.filters import check_group, check_topic, topic_of
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.store.dead_letters import DeadLetter, ParkedRecord, SqlDeadLetters


class Waiting(StrEnum):
    """The states in which a row waits for an operator."""

    FAILED = "FAILED"
    DEAD = "DEAD"
    PARKED = "PARKED"


Status = Annotated[
    Waiting | None,
    typer.Option("--status", help="Filter by state.", case_sensitive=False),
]
MOST_ROWS: Final = 1000
Limit = Annotated[
    int, typer.Option(min=1, max=MOST_ROWS, help="Maximum number of rows of each kind.")
]

_NUMBER = re.compile("[0-9]{1,18}")
_LETTERS: dict[Waiting, OutboxStatus | InboxStatus] = {
    Waiting.FAILED: OutboxStatus.FAILED,
    Waiting.DEAD: InboxStatus.DEAD,
}


def waiting_in(
    app: ShieldTx, *, status: Waiting | None, group: str | None, topic: str | None, limit: int
) -> list[DeadLetter | ParkedRecord]:
    """Return the waiting rows: at most `limit` dead letters and parked records each.

    A note on standard error reports that more rows wait. Raises ConfigurationError for a group or a
    topic that is not known.
    """
    topic = topic_of(app, topic)
    letters = _letters(app, status=status, group=group, topic=topic, limit=limit + 1)
    parked = _parked(app, status=status, group=group, topic=topic, limit=limit + 1)
    if len(letters) > limit or len(parked) > limit:
        advice = "raise --limit" if limit < MOST_ROWS else "choose by --status, --group and --topic"
        typer.echo(f"more exist: {advice}", err=True)
    found: list[DeadLetter | ParkedRecord] = [*letters[:limit], *parked[:limit]]
    if not found:
        _check_names(app, group=group, topic=topic)
    return found


def _letters(
    app: ShieldTx, *, status: Waiting | None, group: str | None, topic: str | None, limit: int
) -> Sequence[DeadLetter]:
    if status is Waiting.PARKED:
        return ()
    of_status = None if status is None else _LETTERS[status]
    return app.stores.dead_letters().latest(limit=limit, group=group, topic=topic, status=of_status)


def _parked(
    app: ShieldTx, *, status: Waiting | None, group: str | None, topic: str | None, limit: int
) -> Sequence[ParkedRecord]:
    if status not in {Waiting.PARKED, None}:
        return ()
    prefix = app.settings.topic_prefix
    topics = None if topic is None else [physical_topic(prefix, topic, kind) for kind in TxKind]
    return app.stores.dead_letters().parked(limit=limit, group=group, topics=topics, values=False)


def _check_names(app: ShieldTx, *, group: str | None, topic: str | None) -> None:
    """Refuse a group or a topic that is not known: the filters have found no row."""
    if group is not None:
        check_group(app, group)
    if topic is not None and not (
        _letters(app, status=None, group=None, topic=topic, limit=1)
        or _parked(app, status=None, group=None, topic=topic, limit=1)
    ):
        check_topic(app, topic)


def rows_of(store: SqlDeadLetters, ref: str) -> Sequence[DeadLetter]:
    """Return the rows of an event id; raises ConfigurationError if there are none."""
    try:
        event_id = UUID(ref)
    except ValueError:
        raise ConfigurationError(f"{ref!r} is not an event id; see `shieldtx dead list`") from None
    found = store.find(event_id)
    if not found:
        raise ConfigurationError(f"there is no event {event_id} in this database")
    return found


def record_of(store: SqlDeadLetters, ref: str) -> ParkedRecord:
    """Return the parked record of a reference; raises ConfigurationError if it does not exist."""
    parts = ref.split("/")
    needed = len(dead_letter_views.RECORD_REF)
    if len(parts) not in (needed, needed + 1) or not all(map(_NUMBER.fullmatch, parts[2:4])):
        raise ConfigurationError(f"{ref!r}: write it as {'/'.join(dead_letter_views.RECORD_REF)}")
    group, topic, partition, offset, *digest = parts
    found = store.find_parked(
        group=group,
        topic=topic,
        partition=int(partition),
        offset=int(offset),
        digest="".join(digest),
    )
    if not found:
        raise ConfigurationError(f"there is no parked record {ref} in this database")
    if len(found) > 1:
        refs = ", ".join(record.ref for record in found)
        raise ConfigurationError(
            f"{len(found)} records were parked from {ref}, as its topic was recreated: name one "
            f"of {refs}"
        )
    return found[0]


def in_group(rows: Sequence[DeadLetter], group: str | None) -> list[DeadLetter]:
    """Return the rows of an event that a group received; all rows without a group."""
    wanted = [row for row in rows if group is None or row.group == group]
    if not wanted:
        raise ConfigurationError(f"group {group} has not received event {rows[0].envelope.id}")
    return wanted
