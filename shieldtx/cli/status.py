"""`shieldtx status`: the current state of a service."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli import consumers
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import (
    AsJson,
    age,
    moment,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from shieldtx.domain.event_types import OnBacklog
from shieldtx.domain.events import physical_topic
from shieldtx.store.status import (
    DEFAULT_LIMIT,
    Backlog,
    Count,
    Precision,
    ServiceStatus,
    warning_of_shared_schema,
)

_OUTBOX_COLUMNS = ("INIT", "PROCESSING", "HALF", "PROCESSED", "DISCARDED", "UNRESOLVED", "FAILED")
_ALWAYS = frozenset({"INIT", "PROCESSING", "PROCESSED", "FAILED", "DEAD"})
_INBOX_COLUMNS = (
    "INIT",
    "PROCESSING",
    "PROCESSED",
    "MAX_RECONSUMED",
    "FENCED",
    "DISCARDED",
    "DEAD",
)


def status(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show backlogs and their ages, by topic and by group, and the active relays.

    The command is cheap on large tables: it counts up to 10,000 rows of a kind. For more rows, it
    shows the database's estimate (`~`) or the count so far (`+`, at least; `?` where that is 0).
    All rows that wait for an operator are counted. PROCESSED and DISCARDED
    events stay until their retention is over. FAILED, DEAD and parked rows wait for an operator,
    see `shieldtx dead`; UNRESOLVED rows too, see `shieldtx half`. The end of the output lists
    paused handlers, topics at their SHIELDTX_BACKLOG_LIMIT, partitions at
    SHIELDTX_CONSUMER_PENDING_LIMIT, and unfinished inbox events for which the application declares
    no handler.

    Example: `shieldtx status --json | jq .outbox.oldest_pending_seconds`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA.
    """
    app = invocation(context).service()
    app.schema.check()
    overview = app.stores.status().read()
    at_limit = _at_limit(app, overview)
    unhandled = _unhandled(app, overview)
    paused = consumers.paused_handlers(app)
    others = app.stores.limits().other_sources(app.settings.source)
    if as_json:
        data = _data(app, overview)
        data["outbox"]["other_sources"] = others
        print_json(data | {"at_limit": at_limit, "unhandled": unhandled, "paused": paused})
    else:
        _show(app, overview)
        for each in paused:
            print_line(consumers.text_of(each))
        for source, count in others.items():
            print_line(warning_of_shared_schema(count, source, app.settings.source))
        for topic in at_limit["topics"]:
            print_line(
                f"topic {topic['topic']} is at its limit: {topic['limit']:,} events or more wait "
                f"to be sent, on_backlog of further ones: {topic['on_backlog']}"
            )
        for place in at_limit["partitions"]:
            print_line(
                f"{place['topic']}[{place['partition']}] is paused for group {place['group']}: "
                f"{place['pending']:,} of its events are unfinished in the inbox"
            )
        for each in unhandled:
            more = "" if each["precision"] == Precision.EXACT else " or more"
            print_line(
                f"group {each['group']} has no handler for {each['kind']} of {each['type']} in "
                f"this application: {each['rows']:,}{more} unfinished events wait in the inbox"
            )


def _show(app: ShieldTx, overview: ServiceStatus) -> None:
    print_fields(
        [
            ("service", app.settings.source),
            ("database", _database(app)),
            ("time", moment(overview.at)),
            ("oldest pending in the outbox", age(overview.outbox.oldest)),
            ("oldest pending in the inbox", age(overview.inbox.oldest)),
            *_half_messages(overview),
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


def _half_messages(overview: ServiceStatus) -> list[tuple[str, str]]:
    """Return the ages of the oldest half messages, if there are any."""
    oldest = {
        "oldest half message": overview.oldest_half,
        "oldest unresolved half message": overview.oldest_unresolved,
    }
    return [(name, age(duration)) for name, duration in oldest.items() if duration is not None]


def _at_limit(app: ShieldTx, overview: ServiceStatus) -> dict[str, list[dict[str, Any]]]:
    """Return the topics that the write side objects to, and the partitions that consumers pause."""
    # Of several types of a topic, the lowest limit applies first.
    by_limit = sorted(app.event_types, key=lambda declared: -(declared.backlog_limit or 0))
    declared = {
        declared.topic: declared
        for declared in by_limit
        if declared.backlog_limit is not None and declared.on_backlog is not OnBacklog.IGNORE
    }
    limits = {topic: d.backlog_limit for topic, d in declared.items() if d.backlog_limit}
    most = app.settings.consumer_pending_limit
    # Usually no group has as many open rows in total: then nothing is counted.
    crowded = {
        g.group: app.handled_by(g.group)
        for g in overview.groups
        if _open_rows(g.backlog) >= min(most, DEFAULT_LIMIT)
    }
    found = app.stores.limits()
    return {
        "topics": [
            {
                "topic": at.topic,
                "limit": at.limit,
                "on_backlog": declared[at.topic].on_backlog.value,
            }
            for at in found.topics(limits)
        ],
        "partitions": [
            {
                "group": at.group,
                "topic": physical_topic(app.settings.topic_prefix, at.topic, at.kind),
                "partition": at.partition,
                "pending": at.pending,
            }
            for at in found.partitions(crowded, most)
        ],
    }


def _unhandled(app: ShieldTx, overview: ServiceStatus) -> list[dict[str, Any]]:
    """Count the inbox events without a handler in this application, by type."""
    store = app.stores.inbox()
    found = []
    for group in [g.group for g in overview.groups if _open_rows(g.backlog)]:
        rows_of = store.unhandled(group, handled=app.handled_by(group), limit=DEFAULT_LIMIT)
        is_cut = sum(rows_of.values()) >= DEFAULT_LIMIT
        precision = Precision.AT_LEAST if is_cut else Precision.EXACT
        found += [
            {"group": group, "type": event_type, "kind": kind.value}
            | _count(Count(rows=rows, precision=precision))
            for (event_type, kind), rows in sorted(rows_of.items())
        ]
    return found


def _open_rows(backlog: Backlog) -> int:
    return sum(backlog.states[state].rows for state in ("INIT", "PROCESSING"))


def _show_backlogs(
    title: str, what: str, states: tuple[str, ...], backlogs: list[tuple[str, Backlog]]
) -> None:
    """Print one line per backlog, without the columns that are all zero, except some states."""
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
            # A count that found none before its limit says nothing.
            return f"{count.rows:,}+" if count.rows else "?"


def _data(app: ShieldTx, overview: ServiceStatus) -> dict[str, Any]:
    return {
        "source": app.settings.source,
        "at": moment(overview.at),
        "outbox": _backlog(overview.outbox)
        | {
            "oldest_half_seconds": _seconds(overview.oldest_half),
            "oldest_unresolved_seconds": _seconds(overview.oldest_unresolved),
            "topics": [
                {"topic": topic.topic, "kind": topic.kind.value} | _backlog(topic.backlog)
                for topic in overview.topics
            ],
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
    return {
        "states": {str(state): _count(count) for state, count in backlog.states.items()},
        "retrying": _count(backlog.retrying),
        "delayed": _count(backlog.delayed),
        "oldest_pending_seconds": _seconds(backlog.oldest),
    }


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _count(count: Count) -> dict[str, Any]:
    return {"rows": count.rows, "precision": count.precision.value}


def _database(app: ShieldTx) -> str:
    """Return the database's name and address, without user, password and options."""
    url = app.settings.url
    place = f"{url.host}:{url.port}/" if url.host and url.port else f"{url.host or ''}/"
    return f"{url.get_backend_name()} {place}{url.database}"
