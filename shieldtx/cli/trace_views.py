"""The timeline of an event as a tree and as JSON; the keys are stable."""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from rich.text import Text
from rich.tree import Tree

from shieldtx.cli.output import age, moment
from shieldtx.domain.states import TxKind
from shieldtx.logs.text import printable
from shieldtx.tracing.model import EventTimeline, Hop, Step

_PHRASES: Final = {
    "WRITTEN": "written",
    "CLAIMED": "claimed by a relay",
    "PUBLISHED": "published",
    "NOT_PUBLISHED": "not published",
    "PROCESSED": "PROCESSED",
    "RECEIVED": "received",
    "STARTED": "handler called",
    "APPLIED": "effect committed",
    "COMPENSATED": "compensated",
    "MOOT": "nothing to take back",
    "RETRIED": "failed, tried again",
    "REFUSED": "given up, rollback written",
    "LOST": "lost to another worker",
}
"""Texts for outcomes; an outcome without an entry is a status, and is shown unchanged."""

_TIME: Final = 29
_AFTER: Final = 13
_SECOND: Final = 1.0


def data_of(timeline: EventTimeline) -> dict[str, Any]:
    """Return an event's timeline as JSON data."""
    event = timeline.identity
    return {
        "event_id": str(event.event_id),
        "event_type": event.type,
        "kind": event.kind.value,
        "operation": event.operation,
        "source": event.source,
        "topic": event.topic,
        "key": event.key,
        "biz_key": event.biz_key,
        "causation_id": None if event.causation_id is None else str(event.causation_id),
        "causation_source": event.causation_source,
        "traceparent": event.traceparent,
        "hops": [_data_of_hop(hop) for hop in timeline.hops],
        "caused": [data_of(caused) for caused in timeline.caused],
        "unknown": list(timeline.unknown),
    }


def tree_of(timeline: EventTimeline, *, asked: Container[UUID]) -> Tree:
    """Return the timeline as a tree; events `asked` for are marked, except the first."""
    tree = Tree(_title(timeline), guide_style="dim")
    event = timeline.identity
    if event.causation_id is not None:
        verb = "takes back" if event.kind is TxKind.ROLLBACK else "caused by"
        tree.add(_text(f"{verb} {event.causation_id} of {event.causation_source}"))
    _fill(tree, timeline, asked)
    return tree


def _data_of_hop(hop: Hop) -> dict[str, Any]:
    return {
        "service": hop.service,
        "group": hop.group,
        "status": hop.status,
        "attempts": hop.attempts,
        "steps": [_data_of_step(step) for step in hop.steps],
        "caused": [data_of(caused) for caused in hop.caused],
        "unknown": list(hop.unknown),
    }


def _data_of_step(step: Step) -> dict[str, Any]:
    return {
        "what": step.what,
        "at": moment(step.at),
        "after_s": None if step.after is None else step.after.total_seconds(),
        "attempt": step.attempt,
        "outcome": step.outcome or None,
        "partition": step.partition,
        "offset": step.offset,
        "took_s": step.took,
        "until": moment(step.until),
        "reason": step.reason or None,
    }


def _fill(tree: Tree, timeline: EventTimeline, asked: Container[UUID]) -> None:
    for hop in timeline.hops:
        where = "outbox" if hop.group is None else f"inbox of group {hop.group}"
        branch = tree.add(_text(f"{hop.service}, {where}: {hop.status}", style="bold"))
        for step in hop.steps:
            branch.add(_line(step))
        for unknown in hop.unknown:
            branch.add(_text(f"not known {unknown}", style="dim"))
        for caused in hop.caused:
            _fill(branch.add(_title(caused, asked)), caused, asked)
    for unknown in timeline.unknown:
        tree.add(_text(f"not known {unknown}", style="dim"))
    for caused in timeline.caused:
        _fill(tree.add(_title(caused, asked)), caused, asked)


def _title(timeline: EventTimeline, asked: Container[UUID] = ()) -> Text:
    event = timeline.identity
    named = [f"{event.kind.value} {event.type} {event.event_id} of {event.source}"]
    if event.key is not None:
        named.append(f"key {event.key}")
    if event.biz_key is not None:
        named.append(f"business key {event.biz_key}")
    if event.event_id in asked:
        named.append("asked for")
    return _text(", ".join(named), style="bold cyan")


def _line(step: Step) -> Text:
    at = "-" if step.at is None else step.at.isoformat(timespec="milliseconds")
    after = "" if step.after is None else span(step.after, sign=True)
    parts = [_PHRASES.get(step.what, step.what)]
    if step.attempt is not None and step.what not in {"PROCESSED", "COMPENSATED", "MOOT"}:
        parts.append(f"attempt {step.attempt}")
    if step.what == "NOT_PUBLISHED":
        parts.append(step.outcome)
    if step.offset is not None:
        parts.append(f"partition {step.partition}, offset {step.offset}")
    if step.took is not None:
        parts.append(f"took {span(timedelta(seconds=step.took))}")
    if step.until is not None:
        parts.append(f"next at {moment(step.until)}")
    text = ", ".join(parts) + (f": {step.reason}" if step.reason else "")
    return _text(f"{at:<{_TIME}} {after:>{_AFTER}}  {text}")


def span(duration: timedelta, *, sign: bool = False) -> str:
    """Return a duration: in milliseconds below a second, otherwise in the format of ages."""
    size = abs(duration)
    seconds = size.total_seconds()
    shown = f"{seconds * 1000:.1f} ms" if seconds < _SECOND else age(size)
    if duration < timedelta(0):
        return f"-{shown}"
    return f"+{shown}" if sign else shown


def _text(line: str, style: str = "") -> Text:
    return Text(printable(line), style=style)
