"""`shieldtx status`: how a service stands."""

from __future__ import annotations

from typing import Any

import typer

from shieldtx.app import ShieldTx
from shieldtx.cli.invocation import invocation
from shieldtx.cli.output import (
    AsJson,
    age,
    moment,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from shieldtx.store.overview import Backlog, Count, Overview, Precision

_OUTBOX_COLUMNS = ("INIT", "PROCESSING", "HALF", "PROCESSED", "DISCARDED", "UNRESOLVED", "FAILED")
_ALWAYS = frozenset({"INIT", "PROCESSING", "PROCESSED", "FAILED", "DEAD"})
_INBOX_COLUMNS = ("INIT", "PROCESSING", "PROCESSED", "MAX_RECONSUMED", "FENCED", "DEAD")


def status(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show what waits and since when, by topic and by group, and which relays live.

    It is cheap on big tables: up to 10,000 rows of a kind are counted; where there are more, the
    number is the database's own estimate (`~`) or what was counted (`+`, at least). PROCESSED
    events are there until their retention is over. FAILED, UNRESOLVED, DEAD and parked ones wait
    for a person, see `shieldtx dead`.

    Example: `shieldtx status --json | jq .outbox.oldest_pending_seconds`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    overview = app.overview().read()
    if as_json:
        print_json(_data(app, overview))
    else:
        _show(app, overview)


def _show(app: ShieldTx, overview: Overview) -> None:
    print_fields(
        [
            ("service", app.settings.source),
            ("database", _database(app)),
            ("time", moment(overview.at)),
            ("oldest pending in the outbox", age(overview.outbox.oldest)),
            ("oldest pending in the inbox", age(overview.inbox.oldest)),
            ("shards held", f"{overview.shards_held} of {overview.shards}"),
        ]
    )
    outbox = [(f"{t.topic} {t.kind}", t.backlog) for t in overview.topics]
    _show_backlogs("outbox", "topic", _OUTBOX_COLUMNS, [*outbox, ("all", overview.outbox)])
    inbox = [(group.group, group.backlog) for group in overview.groups]
    _show_backlogs("inbox", "group", _INBOX_COLUMNS, [*inbox, ("all", overview.inbox)])
    if any(group.parked.rows for group in overview.groups):
        parked = [(g.group, _number(g.parked)) for g in overview.groups if g.parked.rows]
        print_table("parked records", ("group", "records"), parked, right=("records",))
    relays = [(r.name, moment(r.started_at), r.shards) for r in overview.relays]
    if relays:
        print_table("living relays", ("relay", "started", "shards"), relays, right=("shards",))
    else:
        print_line("no relay lives")


def _show_backlogs(
    title: str, what: str, states: tuple[str, ...], backlogs: list[tuple[str, Backlog]]
) -> None:
    """Print a line a backlog; columns of nothing but zeros are left out, some are always there."""
    lines = [(name, _numbers(states, backlog), backlog.oldest) for name, backlog in backlogs]
    shown = [
        number
        for number in (*states, "retrying", "delayed")
        if number in _ALWAYS or any(numbers[number].rows for _, numbers, _ in lines)
    ]
    print_table(
        title,
        (what, *shown, "oldest pending"),
        [
            (name, *(_number(numbers[number]) for number in shown), age(oldest))
            for name, numbers, oldest in lines
        ],
        right=(*shown, "oldest pending"),
    )


def _numbers(states: tuple[str, ...], backlog: Backlog) -> dict[str, Count]:
    by_state = {state: backlog.states[state] for state in states}
    return by_state | {"retrying": backlog.retrying, "delayed": backlog.delayed}


def _number(count: Count) -> str:
    match count.precision:
        case Precision.EXACT:
            return f"{count.rows:,}"
        case Precision.ESTIMATED:
            return f"~{count.rows:,}"
        case Precision.AT_LEAST:
            return f"{count.rows:,}+"


def _data(app: ShieldTx, overview: Overview) -> dict[str, Any]:
    return {
        "source": app.settings.source,
        "at": moment(overview.at),
        "outbox": _backlog(overview.outbox)
        | {
            "topics": [
                {"topic": topic.topic, "kind": topic.kind.value} | _backlog(topic.backlog)
                for topic in overview.topics
            ]
        },
        "inbox": _backlog(overview.inbox)
        | {
            "groups": [
                {"group": group.group} | _backlog(group.backlog) | {"parked": _count(group.parked)}
                for group in overview.groups
            ]
        },
        "relays": [
            {"relay": relay.name, "started_at": moment(relay.started_at), "shards": relay.shards}
            for relay in overview.relays
        ],
        "shards": {"all": overview.shards, "held": overview.shards_held},
    }


def _backlog(backlog: Backlog) -> dict[str, Any]:
    oldest = backlog.oldest
    return {
        "states": {str(state): _count(count) for state, count in backlog.states.items()},
        "retrying": _count(backlog.retrying),
        "delayed": _count(backlog.delayed),
        "oldest_pending_seconds": None if oldest is None else oldest.total_seconds(),
    }


def _count(count: Count) -> dict[str, Any]:
    return {"rows": count.rows, "precision": count.precision.value}


def _database(app: ShieldTx) -> str:
    """Name the database, without user, password and options."""
    url = app.settings.url
    place = f"{url.host}:{url.port}/" if url.host and url.port else f"{url.host or ''}/"
    return f"{url.get_backend_name()} {place}{url.database}"
