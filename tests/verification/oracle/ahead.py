"""A clock that was ahead for a while, and was set right: rows keep times in the future.

No mismatch of such a row is reported before its times have passed, so a run has to report the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import some_time, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.timeline import DAY, Life
from tests.verification.oracle.topic_logs import id_of

O = OutboxStatus  # noqa: E741  short, for what happens in stories


def is_lost_in_an_hour_ahead(h: History) -> None:
    """An event is sent while the clock of its database is ahead, and no group receives it."""
    event_type, groups = some_type(h)
    at = some_time(h)
    ahead = at + h.random.choice((DAY, 2 * DAY, 30 * DAY))
    event = h.written(event_type, at, id_at=ahead, created_at=ahead, due_at=ahead)
    event.becomes(O.PROCESSING, at, attempts=1, lease_until=ahead + 1)
    event.becomes(O.PROCESSED, at, settled_at=ahead)
    # A record is as old as its row states, and lies in the topic from then on.
    h.marks.sent[id_of(event)] = (ahead,)
    for group in groups:
        known = {"since": at, "moved": ahead, "trace": ahead, "rows": (event,)}
        h.say(Verdict.MISSING_DOWNSTREAM, event, group, **known)


def must_tell(h: History, night: Judged) -> bool:
    """Return whether there is such a row, of an event that a configured group should have."""
    left_out = night.unknown | night.mistyped | night.renamed
    return any(
        h.setting.declared
        and life.service != night.renamed_service
        and any(
            (group.service, group.name) not in left_out and group.service != night.renamed_service
            for group in h.setting.receivers(life.columns["event_type"])
        )
        for life in _ahead(h, night)
    )


def may_tell(h: History, night: Judged) -> bool:
    """Return whether there is such a row, which a group without a configuration may lack."""
    return any(True for _ in _ahead(h, night))


def is_ahead(row: dict[str, Any], night: Judged) -> bool:
    """Return whether a time of a row is in the future."""
    times = (row.get("created_at"), row.get("received_at"), row.get("settled_at"))
    return max(time for time in times if time is not None) > night.at + night.margin


def _ahead(h: History, night: Judged) -> Iterator[Life]:
    for life in h.outboxes(night):
        row = life.at(night.at)
        if life.source == life.service and row is not None and is_ahead(row, night):
            yield life


AHEAD = (is_lost_in_an_hour_ahead,)
