"""Stories of services that handle their own events, and compensate them in the same group.

A rollback that arrives before its event leaves a tombstone: the event is refused when it arrives,
because it is already taken back.
"""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.domain.states import InboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import is_given_up, returned_to_others, some_time
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import UNDO, Group, undo_of
from tests.verification.oracle.timeline import DAY, Life

I, V = InboxStatus, Verdict  # noqa: E741  short, for what happens in stories


def own_of(h: History, event_type: str) -> Group | None:
    """Return the group that handles this type of its own service's events; None without one."""
    return next((group for group in h.setting.receivers(event_type) if is_own(group)), None)


def is_own(group: Group) -> bool:
    """Return whether a group handles events of its own service, and compensates them."""
    return group.name == undo_of(group.service)


def _types(h: History) -> Iterator[str]:
    """Yield the types that their own services handle, and others as well."""
    for event_type in sorted({each for group in h.setting.groups for each in group.types}):
        if own_of(h, event_type) and len(h.setting.receivers(event_type)) > 1:
            yield event_type


def _refused_elsewhere(
    h: History, *, at_once: bool = False
) -> tuple[Life, Group, Life, int] | None:
    """Let another service refuse such an event; return it, its own group, and the rollback."""
    types = list(_types(h))
    if not types:
        return None
    event_type = h.random.choice(types)
    own = own_of(h, event_type)
    assert own is not None
    others = [group for group in h.setting.receivers(event_type) if group != own]
    refusing = h.random.choice(others)
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at)
    arrival = h.received(event, refusing, at)
    late = at + (1 if at_once else h.random.choice((1, 1, 60, 2 * DAY)))
    arrival.becomes(I.PROCESSING, at, attempts=2, due_at=late)
    rollback = h.gave_up(arrival, late)
    rows: tuple[Life, ...] = (event, arrival, rollback)
    h.say(V.REFUSED, event, refusing, since=late, rows=rows, arrival=arrival)
    for group in others:
        if group != refusing:
            other = h.received(event, group, at)
            h.applied(other, at)
            grounds = (arrival,) if group.service == refusing.service else ()
            rows = event, other, *grounds
            h.say(V.MATCHED, event, group, since=late, rows=rows, arrival=other)
    h.sent(rollback, late)
    return event, own, rollback, late


def fenced(h: History, event: Life, group: Group, at: float, *, by: Life) -> Life:
    """Write a tombstone for an event, by the rollback that arrived first."""
    tombstone = h.received(event, group, at, status=I.FENCED)
    of_rollback = {"causation_id": by.event_id, "causation_source": by.source}
    times = {"event_time": by.columns["created_at"]}
    tombstone.columns |= {**of_rollback, **times, "payload": "null", "biz_key": None}
    return tombstone


def _undone_without_it(
    h: History, event: Life, own: Group, rollback: Life, at: int, *, until: int
) -> Life:
    """Let all groups compensate an event that its service's own group lacks until then."""
    h.lacks(event, own, since=event.settled_at, until=until)
    undone = h.compensated(rollback, at + 2)
    returned_to_others(h, rollback, at)
    h.say(V.MATCHED, rollback, UNDO, since=at + 3, rows=(rollback, undone), arrival=undone)
    return undone


def rollback_comes_first(h: History) -> None:
    """A service has a rollback of its event before its own group has the event."""
    refused = _refused_elsewhere(h)
    if refused is None:
        is_given_up(h)
        return
    event, own, rollback, at = refused
    undone = _undone_without_it(h, event, own, rollback, at, until=at + 3)
    tombstone = fenced(h, event, own, at + 3, by=rollback)
    rows = event, tombstone, undone
    h.say(V.REFUSED, event, own, since=at + 3, rows=rows, arrival=tombstone)


def effect_follows_the_compensation(h: History) -> None:
    """A group applies an event after compensating it, as a group without a tombstone did."""
    refused = _refused_elsewhere(h)
    if refused is None:
        is_given_up(h)
        return
    event, own, rollback, at = refused
    undone = _undone_without_it(h, event, own, rollback, at, until=at + 4)
    arrival = h.received(event, own, at + 4)
    h.applied(arrival, at + 5)
    rows = event, arrival, undone
    known = {"rows": rows, "arrival": arrival}
    h.say(V.EFFECT_DESPITE_ROLLBACK, event, own, since=at + 5, **known)


def tombstone_is_alone(h: History) -> None:
    """The rollback that left a tombstone vanishes: no row shows why the event is refused."""
    refused = _refused_elsewhere(h, at_once=True)
    if refused is None:
        is_given_up(h)
        return
    event, own, rollback, at = refused
    undone = _undone_without_it(h, event, own, rollback, at, until=at + 3)
    tombstone = fenced(h, event, own, at + 3, by=rollback)
    lost_at = at + 4
    undone.gone_at = lost_at
    h.say(V.REFUSED, event, own, since=at + 3, rows=(event, tombstone, undone), arrival=tombstone)
    sent_at = rollback.settled_at
    known = {"moved": sent_at, "trace": sent_at, "rows": (rollback,)}
    h.say(V.MISSING_DOWNSTREAM, rollback, UNDO, since=lost_at, **known)
    known = {"moved": at + 3, "trace": rollback.born_at, "rows": (event, tombstone)}
    h.say(V.STATUS_DISAGREES, event, own, since=lost_at, arrival=tombstone, **known)


OWN_IN_ORDER = (rollback_comes_first,)
OWN_DAMAGED = (effect_follows_the_compensation, tombstone_is_alone)
OWN = (*OWN_IN_ORDER, *OWN_DAMAGED)
