"""Stories of parked events: DEAD until an operator decides, without a rollback."""

from __future__ import annotations

from typing import Any

from shieldtx.domain.states import InboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import applied_at_once, some_time, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import LIMIT
from tests.verification.oracle.timeline import Life

I, V = InboxStatus, Verdict  # noqa: E741  short, for what happens in stories

_ERROR = "TypeError: takes 1 positional argument but 3 were given"


def event_is_parked(h: History) -> None:
    """A group parks an event that others apply; an operator may replay or discard it later."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at + 1)
    parking = h.random.choice(groups)
    others = [group for group in groups if group is not parking]
    applied_at_once(h, event, others, at + 1)
    arrival = h.received(event, parking, at + 1)
    arrival.becomes(I.DEAD, at + 2, attempts=LIMIT, last_error=_ERROR)
    decision = h.random.choice((None, I.PROCESSED, I.DISCARDED))
    if decision is None:
        h.say(V.PARKED, event, parking, since=at + 2, arrival=arrival)
        return
    decided_at = at + h.random.choice((30, 2000))
    known: dict[str, Any] = {"arrival": arrival}
    h.say(V.PARKED, event, parking, since=at + 2, until=decided_at, **known)
    rows: tuple[Life, ...] = (event, arrival)
    if decision is I.PROCESSED:
        replayed = {"attempts": 1, "due_at": decided_at, "last_error": None}
        arrival.becomes(I.PROCESSING, decided_at, **replayed)
        h.applied(arrival, decided_at + 1)
        h.say(V.MATCHED, event, parking, since=decided_at + 1, rows=rows, **known)
        return
    arrival.becomes(I.DISCARDED, decided_at, attempts=LIMIT, last_error=_ERROR)
    h.say(V.DISCARDED, event, parking, since=decided_at, rows=rows, **known)


PARKED_EVENTS = (event_is_parked,)
