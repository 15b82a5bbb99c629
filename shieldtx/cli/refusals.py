"""`shieldtx dead refuse`: end parked events with their rollback events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli import dead_letter_views
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.bulk import in_batches, preview
from shieldtx.cli.errors import FAILED
from shieldtx.cli.filters import Group, Topic
from shieldtx.cli.output import AsJson, print_json, print_line
from shieldtx.cli.prompts import Who, Yes, confirm, current_operator, require_reason
from shieldtx.cli.selection import (
    MOST_CHANGED,
    BizKey,
    ChangeLimit,
    ErrorPart,
    EventType,
    Key,
    RefusableStatus,
    Since,
    Waiting,
    require_one_choice,
    selection_of,
)
from shieldtx.cli.waiting import in_group, only_one, rows_of, selected_in
from shieldtx.domain.states import TxKind
from shieldtx.errors import IllegalTransition
from shieldtx.store.dead_letter_rows import DeadLetter
from shieldtx.store.refusals import Refusal

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of DEAD events.")]
RefusalReason = Annotated[
    str,
    typer.Option(
        "--reason", help="Reason of the refusal, in the rollback event and the audit log."
    ),
]


def refuse(
    context: typer.Context,
    ids: Ids = None,
    *,
    reason: RefusalReason,
    status: RefusableStatus = None,
    group: Group = None,
    topic: Topic = None,
    event_type: EventType = None,
    key: Key = None,
    biz_key: BizKey = None,
    error: ErrorPart = None,
    since: Since = None,
    limit: ChangeLimit = 50,
    who: Who = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Refuse DEAD events: write their rollback events, so that upstream services compensate.

    For events whose handlers have `RetryPolicy(then="park")`. Row, rollback event and audit entry
    are written in one transaction, as if the handler had refused the event. Without ids, --status
    DEAD selects the oldest such events that the filters match, up to --limit, in batches. `shieldtx
    dead list` shows the latest ones first. Rows that are no longer DEAD stay unchanged: they are
    listed, and the exit status is 1.

    Example: `shieldtx dead refuse 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de --reason "sold out"`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA,
    SHIELDTX_TOPIC_PREFIX, SHIELDTX_SHARDS.
    """
    require_reason(reason)
    selection = selection_of(
        status=Waiting.DEAD if status else None,
        group=group,
        topic=topic,
        event_type=event_type,
        kind=None if ids else TxKind.COMMIT,
        key=key,
        biz_key=biz_key,
        error=error,
        since=since,
    )
    require_one_choice(ids, selection)
    app = invocation(context).service()
    app.schema.check()
    if ids:
        chosen = [_event(app, each, group) for each in dict.fromkeys(ids)]
    else:
        found = selected_in(app, selection, limit=limit, most=MOST_CHANGED, oldest=True)
        chosen = [row for row in found if isinstance(row, DeadLetter)]
    if chosen:
        _confirm(chosen, yes=yes)
    operator, refusals = who or current_operator(), app.stores.refusals(app.outbox, reason)
    done = in_batches(chosen, lambda part: refusals.refuse(part, who=operator, reason=reason))
    _print_changes(done, as_json=as_json)


def _event(app: ShieldTx, event_id: str, group: str | None) -> DeadLetter:
    """Return the only row of an event that can be refused."""
    rows = in_group(rows_of(app.stores.dead_letters(), event_id), group)
    possible = [row for row in rows if row.can_be_refused]
    if not possible:
        states = ", ".join(f"{row} is a {row.envelope.kind} that is {row.status}" for row in rows)
        raise IllegalTransition(
            f"{states}: only DEAD events of an inbox can be refused, see `shieldtx dead list "
            "--status DEAD --kind COMMIT`"
        )
    return only_one(possible)


def _confirm(letters: Sequence[DeadLetter], *, yes: bool) -> None:
    preview(letters, verb="refuse")
    typer.echo(
        "warning: a refusal is final: the services with a compensation for these events, and "
        "other groups that have applied them, compensate",
        err=True,
    )
    if not yes and not confirm(f"Refuse {len(letters)} permanently?"):
        typer.echo("Aborted: nothing was refused (use --yes to skip the prompt)", err=True)
        raise typer.Exit(FAILED)


def _print_changes(found: Sequence[Refusal], *, as_json: bool) -> None:
    """Report the outcome of each event; the exit status is 1 unless all were refused."""
    left = [each for each in found if not each.done]
    if as_json:
        print_json([_answer(each) for each in found])
    else:
        for each in found:
            problem = "" if each.done else f" is left as it is: it is {each.status or 'gone'}"
            print_line(f"{each.letter}{problem or ' is refused'}")
        print_line(f"refused: {len(found) - len(left):,}, left as they are: {len(left):,}")
    if left:
        raise typer.Exit(FAILED)


def _answer(each: Refusal) -> dict[str, Any]:
    return dead_letter_views.summary_of_letter(each.letter) | {
        "status": each.status,
        "refused": each.done,
        "problem": None if each.done else f"it is {each.status or 'gone'}",
    }
