"""`shieldtx dead replay`: replay dead letters and parked records."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli import dead_letter_views
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.bulk import in_batches, preview
from shieldtx.cli.errors import FAILED
from shieldtx.cli.filters import Group, Topic
from shieldtx.cli.output import AsJson, print_json, print_line
from shieldtx.cli.prompts import Who, Yes, confirm, current_operator
from shieldtx.cli.selection import (
    BizKey,
    ChangeLimit,
    ErrorPart,
    EventType,
    Key,
    Kind,
    Since,
    Status,
    require_one_choice,
    selection_of,
)
from shieldtx.cli.waiting import only_one, rows_to_change
from shieldtx.errors import IllegalTransition
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord
from shieldtx.store.dead_letters import LetterReplay, why_not_replayed
from shieldtx.store.parked_replays import ParkedReplay, ReplayResult

Refs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Event ids, of which all are replayed or none, and GROUP/TOPIC/PARTITION/OFFSET of "
        "parked records, with the hash that `dead list` shows if several match."
    ),
]

_SAYS = {
    ReplayResult.RECEIVED: "is received: event {event_id} waits in the inbox",
    ReplayResult.DUPLICATE: "had been received before: event {event_id} is in the inbox",
    ReplayResult.STILL_PARKED: "stays parked: {problem}",
    ReplayResult.UNDECIDED: "is left as it is: {problem}",
    ReplayResult.NOT_WAITING: "is left as it is: {problem}",
}


def replay(
    context: typer.Context,
    refs: Refs = None,
    *,
    status: Status = None,
    group: Group = None,
    topic: Topic = None,
    event_type: EventType = None,
    kind: Kind = None,
    key: Key = None,
    biz_key: BizKey = None,
    error: ErrorPart = None,
    since: Since = None,
    limit: ChangeLimit = 50,
    also_purged: Annotated[
        bool,
        typer.Option(
            "--also-purged",
            help="Replay parked records also where the inbox may have purged their events.",
        ),
    ] = False,
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replay FAILED events, DEAD rows of the inbox and parked records, with all their attempts.

    The operator is recorded in shield_audit, in the same transaction. Without ids, --status
    selects the oldest rows that the filters match, up to --limit; `shieldtx dead list` shows the
    latest ones first. The command shows their numbers, asks, and replays them in batches. Rows that
    no longer wait stay unchanged: they are listed, and the exit status is 1.

    FAILED: the local rollback may have run, and later events of the key may have been published.
    Replay an event only if the service's data require it to be sent anyway. A warning appears if
    this database has a rollback event of it, or if it may have been delivered longer ago than
    SHIELDTX_RETENTION_INBOX: a group may then apply it twice.

    DEAD: the handler or the compensation runs again. Later events of the key did not wait for the
    row, and may be applied already.

    PARKED: the record is decoded and checked as by the consumer of its group, which needs `--app`
    and the settings of the consumer. Its event then waits in the inbox, after the open events of
    its key; an event that the group has received before is a duplicate. A record that still does
    not fit stays parked, with the present reason.

    Example: `shieldtx dead replay --status PARKED --group refunds --error ce_signature`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_TOPIC_PREFIX, SHIELDTX_SIGNING_KEY, SHIELDTX_RETENTION_INBOX.
    """
    selection = selection_of(
        status=status,
        group=group,
        topic=topic,
        event_type=event_type,
        kind=kind,
        key=key,
        biz_key=biz_key,
        error=error,
        since=since,
    )
    require_one_choice(refs, selection)
    app = invocation(context).service()
    app.schema.check()
    operator = who or current_operator()
    chosen = rows_to_change(app, refs, selection, limit=limit, of_event=_of_event)
    letters = [row for row in chosen if isinstance(row, DeadLetter)]
    records = [row for row in chosen if isinstance(row, ParkedRecord)]
    _confirm(app, letters, records, is_named=bool(refs), yes=yes)
    store = app.stores.dead_letters()
    if refs:
        store.replay(letters, who=operator)
        of_letters = [LetterReplay(letter=letter, done=True) for letter in letters]
    else:
        of_letters = in_batches(letters, lambda part: store.replay_waiting(part, who=operator))
    replays, check = app.stores.parked_replays(), app.parked_check()
    of_records = in_batches(
        records,
        lambda part: replays.replay(part, check, who=operator, also_purged=also_purged),
    )
    _print_results(of_letters, of_records, as_json=as_json, is_named=bool(refs))


def _of_event(rows: Sequence[DeadLetter]) -> DeadLetter:
    """Return the only row of an event that can be replayed."""
    possible = [row for row in rows if row.can_be_replayed]
    if not possible:
        states = ", ".join(f"{row} is {row.status}" for row in rows)
        # The last row: an inbox row explains more than the outbox row of the same database.
        raise IllegalTransition(f"{states}: {why_not_replayed(rows[-1].status)}")
    return only_one(possible)


def _confirm(
    app: ShieldTx,
    letters: Sequence[DeadLetter],
    records: Sequence[ParkedRecord],
    *,
    is_named: bool,
    yes: bool,
) -> None:
    """Report the risks, and ask: for FAILED events, and for rows that filters have selected."""
    failed = [letter for letter in letters if letter.group is None]
    if not is_named and (letters or records):
        preview([*letters, *records], verb="replay")
    taken_back = app.stores.dead_letters().taken_back(failed) if failed else set()
    if is_named:
        _warn_of_each(
            failed, taken_back, kept_since=datetime.now(UTC) - app.settings.retention_inbox
        )
    else:
        _warn_of_many(failed, taken_back)
    needs_answer = failed or (not is_named and (letters or records))
    if needs_answer and not yes and not confirm("Replay?"):
        typer.echo("Aborted: nothing was replayed (use --yes to skip the prompt)", err=True)
        raise typer.Exit(FAILED)


def _warn_of_each(
    failed: Sequence[DeadLetter], taken_back: Container[UUID], *, kept_since: datetime
) -> None:
    for letter in failed:
        warning = dead_letter_views.warning_of(
            letter, taken_back=letter.envelope.id in taken_back, kept_since=kept_since
        )
        typer.echo(warning, err=True)


def _warn_of_many(failed: Sequence[DeadLetter], taken_back: Container[UUID]) -> None:
    """Count the events whose replay has a known risk."""
    compensated = sum(letter.envelope.id in taken_back for letter in failed)
    unconfirmed = sum(letter.unconfirmed for letter in failed)
    if failed:
        typer.echo(
            "warning: replay publishes them now, after later events of their keys. Local "
            "rollbacks, if their types declare any, have run, except those of unconfirmed events. "
            f"With a rollback event, so that the effect would come after the compensation: "
            f"{compensated:,}. Unconfirmed, so that they may have been delivered: {unconfirmed:,}. "
            "`shieldtx dead replay ID` explains the risk of one event",
            err=True,
        )


def _print_results(
    letters: Sequence[LetterReplay],
    records: Sequence[ParkedReplay],
    *,
    as_json: bool,
    is_named: bool,
) -> None:
    """Report the outcome of each row; the exit status is 1 unless all were replayed."""
    are_done = [*(each.done for each in letters), *(each.done for each in records)]
    done, left = are_done.count(True), are_done.count(False)
    if as_json:
        print_json([*map(_letter_data, letters), *map(_record_data, records)])
    else:
        for letter in letters:
            print_line(_letter_line(letter))
        for record in records:
            text = _SAYS[record.result].format(event_id=record.event_id, problem=record.problem)
            print_line(f"{record.record} {text}")
        if not is_named or left:
            print_line(f"replayed: {done:,}, left as they are: {left:,}")
    if left:
        raise typer.Exit(FAILED)


def _letter_line(replayed: LetterReplay) -> str:
    if replayed.done:
        return f"{replayed.letter} is queued again"
    return f"{replayed.letter} is left as it is: it is {replayed.status or 'gone'}"


def _letter_data(replayed: LetterReplay) -> dict[str, Any]:
    done = replayed.done
    return dead_letter_views.summary_of_letter(replayed.letter) | {
        "result": "QUEUED" if done else ReplayResult.NOT_WAITING.value,
        "event_id": str(replayed.letter.envelope.id),
        "problem": None if done else f"it is {replayed.status or 'gone'}",
    }


def _record_data(replayed: ParkedReplay) -> dict[str, Any]:
    return dead_letter_views.summary_of_record(replayed.record) | {
        "result": replayed.result.value,
        "event_id": None if replayed.event_id is None else str(replayed.event_id),
        "problem": replayed.problem or None,
    }
