"""`shieldtx dead discard`: discard dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from shieldtx.cli import dead_letter_views
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.bulk import in_batches, preview
from shieldtx.cli.errors import FAILED
from shieldtx.cli.filters import Group, Topic
from shieldtx.cli.output import AsJson, print_json, print_line
from shieldtx.cli.prompts import (
    Reason,
    Who,
    Yes,
    confirm_discard,
    current_operator,
    require_reason,
)
from shieldtx.cli.selection import (
    BizKey,
    ChangeLimit,
    ErrorPart,
    EventType,
    Key,
    Kind,
    Since,
    Status,
    Waiting,
    require_one_choice,
    selection_of,
)
from shieldtx.cli.waiting import only_one, rows_to_change
from shieldtx.store.dead_letter_rows import DeadLetter
from shieldtx.store.discards import DISCARD, Discard, Discardable, consequence_of

_MOST_WARNINGS: Final = 50

Refs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Event ids, and GROUP/TOPIC/PARTITION/OFFSET of parked records, with the hash that "
        "`dead list` shows if several match."
    ),
]


def discard(
    context: typer.Context,
    refs: Refs = None,
    *,
    reason: Reason,
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
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard FAILED events, DEAD rows of the inbox and parked records permanently.

    Discarded rows are not published, handled or compensated any more, and nothing is undone: if a
    rollback event is discarded, the effect of its event stays; if a DEAD event is discarded, its
    service does not compensate (`shieldtx dead refuse` makes it compensate). The operator and the
    reason are recorded in shield_audit, in the same transaction. Without ids, --status selects the
    oldest rows that the filters match, up to --limit, and changes them in batches. `shieldtx dead
    list` shows the latest ones first. Rows that no longer wait for an operator stay unchanged: they
    are listed, and the exit status is 1.

    Example: `shieldtx dead discard --status PARKED --group stock --reason "a test of the producer"`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_TOPIC_PREFIX, SHIELDTX_RETENTION_OUTBOX, SHIELDTX_RETENTION_INBOX.
    """
    require_reason(reason)
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
    chosen = rows_to_change(app, refs, selection, limit=limit, of_event=_of_event)
    if chosen:
        _confirm(chosen, yes=yes)
    operator, discards = who or current_operator(), app.stores.discards()
    found = in_batches(chosen, lambda part: discards.discard(part, who=operator, reason=reason))
    _print_changes(found, as_json=as_json)


def _of_event(rows: Sequence[DeadLetter]) -> DeadLetter:
    """Return the only row of an event that can be discarded, or else the only row that stays."""
    possible = [row for row in rows if row.status in DISCARD]
    return only_one(possible) if possible else rows[0]


def _confirm(rows: Sequence[Discardable], *, yes: bool) -> None:
    """Report the consequence of each discard, or the numbers of many discards, and ask."""
    if len(rows) > _MOST_WARNINGS:
        preview(rows, verb="discard")
    else:
        _warn(rows)
    confirm_discard(len(rows), yes=yes)


def _warn(rows: Sequence[Discardable]) -> None:
    for row in rows:
        if dead_letter_views.status_of(row) in set(Waiting):
            typer.echo(f"warning: discarding {_described(row)}: {consequence_of(row)}", err=True)


def _described(row: Discardable) -> str:
    if isinstance(row, DeadLetter):
        return f"{row} ({row.envelope.type}, {row.status})"
    return str(row)


def _print_changes(found: Sequence[Discard], *, as_json: bool) -> None:
    """Report the outcome of each row; the exit status is 1 unless all were discarded."""
    left = [each for each in found if not each.done]
    if as_json:
        print_json([_answer(each) for each in found])
    else:
        for each in found:
            problem = "" if each.done else f" is left as it is: {_why_not(each)}"
            print_line(f"{each.row}{problem or ' is discarded'}")
        print_line(f"discarded: {len(found) - len(left):,}, left as they are: {len(left):,}")
    if left:
        raise typer.Exit(FAILED)


def _answer(each: Discard) -> dict[str, Any]:
    return dead_letter_views.summary_of(each.row) | {
        "status": each.status,
        "discarded": each.done,
        "problem": None if each.done else _why_not(each),
    }


def _why_not(each: Discard) -> str:
    if each.status is None:
        return "the row is gone"
    return f"it is {each.status}, and only {', '.join(Waiting)} rows can be discarded"
