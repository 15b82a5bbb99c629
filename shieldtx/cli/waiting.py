"""Rows that wait for an operator, found by their references or by filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli import dead_letter_views
from shieldtx.cli.filters import check_event_type, check_group, check_topic, topic_of
from shieldtx.cli.selection import LETTERS, MOST_CHANGED, MOST_LISTED, Listed, Selection
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord
from shieldtx.store.dead_letters import SqlDeadLetters, settled
from shieldtx.store.statements.row_filters import RowFilter

_NUMBER = re.compile("[0-9]{1,18}")


def selected_in(
    app: ShieldTx,
    selection: Selection,
    *,
    limit: int,
    most: int = MOST_LISTED,
    oldest: bool = False,
) -> list[DeadLetter | ParkedRecord]:
    """Return the selected rows: at most `limit` of outbox and inbox, and as many parked records.

    The latest are first, or the oldest. A note on standard error reports that more rows exist; a
    larger limit helps up to `most`. Raises ConfigurationError for a group or a topic that is not
    known.
    """
    selection = replace(selection, topic=topic_of(app, selection.topic))
    letters = _letters(app, selection, limit=limit + 1, oldest=oldest)
    parked = _parked(app, selection, limit=limit + 1, oldest=oldest)
    if len(letters) > limit or len(parked) > limit:
        advice = "raise --limit" if limit < most else "choose by --status, --group and --topic"
        typer.echo(f"more exist: {advice}", err=True)
    found: list[DeadLetter | ParkedRecord] = [*letters[:limit], *parked[:limit]]
    if not found:
        _check_names(app, selection)
    return found


def rows_to_change(
    app: ShieldTx,
    refs: Sequence[str] | None,
    selection: Selection,
    *,
    limit: int,
    of_event: Callable[[Sequence[DeadLetter]], DeadLetter],
) -> list[DeadLetter | ParkedRecord]:
    """Return the rows that references name, each once, or without any the oldest selected ones.

    `of_event` returns the row that is meant, of those that an event has in the group. Raises
    ConfigurationError for a reference without a row, or of another group.
    """
    if not refs:
        return selected_in(app, selection, limit=limit, most=MOST_CHANGED, oldest=True)
    store, group = app.stores.dead_letters(), selection.group
    named: dict[str, DeadLetter | ParkedRecord] = {}
    for ref in refs:
        if "/" in ref:
            row: DeadLetter | ParkedRecord = record_of(store, ref)
            if group not in {None, row.group}:
                raise ConfigurationError(f"{ref!r} is not of group {group}")
        else:
            row = of_event(in_group(rows_of(store, ref), group))
        named[str(row)] = row
    return list(named.values())


def has_given_up(app: ShieldTx, selection: Selection) -> bool:
    """Whether groups have given up any of the selected events."""
    selection = replace(
        selection, status=Listed.MAX_RECONSUMED, topic=topic_of(app, selection.topic)
    )
    return bool(_letters(app, selection, limit=1))


def _letters(
    app: ShieldTx, selection: Selection, *, limit: int, oldest: bool = False
) -> Sequence[DeadLetter]:
    store, status = app.stores.dead_letters(), selection.status
    same: dict[str, Any] = {
        "limit": limit,
        "group": selection.group,
        "topic": selection.topic,
        "rows": selection.rows,
    }
    if status == Listed.MAX_RECONSUMED:
        return store.given_up(**same)
    if status == Listed.PARKED:
        return ()
    if status is not None:
        return store.latest(**same, status=LETTERS[status], oldest=oldest)
    half = store.latest(**same, status=OutboxStatus.UNRESOLVED)
    found = [*store.latest(**same), *half]
    return sorted(found, key=settled, reverse=True)[:limit]


def _parked(
    app: ShieldTx, selection: Selection, *, limit: int, oldest: bool = False
) -> Sequence[ParkedRecord]:
    if selection.status not in {Listed.PARKED, None}:
        return ()
    prefix, topic = app.settings.topic_prefix, selection.topic
    topics = None if topic is None else [physical_topic(prefix, topic, kind) for kind in TxKind]
    return app.stores.dead_letters().parked(
        limit=limit,
        group=selection.group,
        topics=topics,
        values=False,
        rows=selection.rows,
        oldest=oldest,
    )


def _check_names(app: ShieldTx, selection: Selection) -> None:
    """Refuse a group, topic or event type that is not known: the filters have found no row."""
    group, topic, event_type = selection.group, selection.topic, selection.rows.event_type
    if group is not None:
        check_group(app, group)
    if topic is not None and not _has_rows(app, Selection(topic=topic)):
        check_topic(app, topic)
    of_type = Selection(rows=RowFilter(event_type=event_type))
    if event_type is not None and not _has_rows(app, of_type):
        check_event_type(app, event_type, received=True)


def _has_rows(app: ShieldTx, selection: Selection) -> bool:
    """Whether a row in any state that is listed is selected."""
    return bool(
        _letters(app, selection, limit=1)
        or _parked(app, selection, limit=1)
        or has_given_up(app, selection)
    )


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


def only_one(rows: Sequence[DeadLetter]) -> DeadLetter:
    """Return the only one of an event's rows; raises ConfigurationError for several."""
    if len(rows) == 1:
        return rows[0]
    named = ", ".join(map(str, rows))
    # An option --group names no row of the outbox.
    of_outbox = [
        f"; for that of the outbox, write --status {row.status} --type {row.envelope.type} and "
        "--key or --biz-key instead of the id"
        for row in rows
        if row.group is None
    ]
    raise ConfigurationError(f"choose one with --group: {named}{''.join(of_outbox)}")
