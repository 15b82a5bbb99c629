"""Events of a type that no group handles, on a topic whose other types have groups.

A configuration lists the type as one for others, or the run has to report that no group is expected
to receive it. No verdict names such an event, so a run reports those that are listed and wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shieldtx.domain.states import OutboxStatus, TxKind
from tests.verification.oracle.healthy import is_applied, some_time, some_while
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import Judged, unhandled_of
from tests.verification.oracle.timeline import DAY, Life

O = OutboxStatus  # noqa: E741  short, for what happens in stories


def is_handled_by_no_group(h: History) -> None:
    """A service writes such an event: it is sent, refused by the broker, or left.

    Or it is delayed, and perhaps cancelled.
    """
    if not h.setting.with_unhandled:
        is_applied(h)
        return
    at = some_time(h)
    event_type = unhandled_of(h.random.choice(h.setting.with_unhandled))
    outcome = h.random.choice((O.PROCESSED, O.FAILED, O.INIT, O.DISCARDED))
    if outcome is O.DISCARDED:
        due = at + 60 * DAY
        event = h.written(event_type, at, due=due, waiting=True)
        if h.random.random() < 0.5:
            event.becomes(O.DISCARDED, at + h.random.choice((1, DAY)))
        return
    event = h.written(event_type, at)
    if outcome is O.PROCESSED:
        h.sent(event, at + some_while(h))
    elif outcome is O.FAILED:
        event.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1)
        error = h.random.choice(("MessageSizeTooLarge: refused", None))
        event.becomes(O.FAILED, at + 1, last_error=error)


def must_tell(h: History, night: Judged) -> bool:
    """Return whether there is such an event that is not listed, or that waits."""
    return any(
        _waits(row, night) or (life.service in night.unlisted and row["status"] is O.PROCESSED)
        for life, row in _judged(h, night)
        if life.columns["event_type"] == unhandled_of(life.service)
    )


def may_tell(h: History, night: Judged) -> bool:
    """Return whether past receipts do not show who should receive a type.

    No run has seen a group that had received it. Whether a further run reads an event of it depends
    on the reports of earlier runs.
    """
    if h.setting.declared:
        return False
    nights = [each for each in h.setting.nights if each.at <= night.at]
    received = {
        (life.source, life.columns["event_type"])
        for life in h.lives
        if life.group is not None and any(life.at(each.at) is not None for each in nights)
    }
    sent = {
        (life.source, life.columns["event_type"])
        for life, row in _judged(h, night)
        if row["status"] is O.PROCESSED or _waits(row, night)
    }
    return not sent <= received


def _judged(h: History, night: Judged) -> Iterator[tuple[Life, dict[str, Any]]]:
    for life in h.outboxes(night):
        row = life.at(night.at)
        is_theirs = life.source == life.service != night.renamed_service
        if is_theirs and life.kind is TxKind.COMMIT and row is not None:
            yield life, row


def _waits(row: dict[str, Any], night: Judged) -> bool:
    if row["status"] in {O.FAILED, O.UNRESOLVED}:
        return True
    moved = max(row["created_at"], row["due_at"], row.get("lease_until") or 0)
    return row["settled_at"] is None and moved < night.watermark


UNHANDLED = (is_handled_by_no_group,)
