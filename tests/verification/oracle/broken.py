"""Stories with internal faults: the remains of ended processes and lost records."""

from __future__ import annotations

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import (
    applied,
    applied_at_once,
    comes_before_its_event,
    returned,
    returned_to_others,
    some_time,
    some_type,
)
from tests.verification.oracle.history import History
from tests.verification.oracle.own_groups import fenced
from tests.verification.oracle.setting import LIMIT, UNDO, Group, undo_of
from tests.verification.oracle.timeline import DAY, Life

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what happens in stories


def record_is_lost(h: History) -> None:
    """The broker acknowledges an event and loses it for some of the groups."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at + 1)
    lacking = h.random.sample(groups, h.random.randint(1, len(groups)))
    for group in groups:
        if group in lacking:
            h.lacks(event, group, since=at + 1)
        else:
            applied(h, event, group, at + 1)


def record_is_lost_and_taken_back(h: History) -> None:
    """One group gives an event up whose record another one never had, and must not get any more."""
    event_type, groups = some_type(h)
    refusing, *lacking = h.random.sample(groups, len(groups))
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at + 1)
    arrival = h.received(event, refusing, at + 1)
    rollback = h.gave_up(arrival, at + 2)
    rows = event, arrival, rollback
    h.say(V.REFUSED, event, refusing, since=at + 2, rows=rows, arrival=arrival)
    undone = returned(h, rollback, at + 2)
    for group in lacking:
        if group.name == undo_of(group.service):
            # With the rollback, the group leaves a tombstone.
            back_at = undone.settled_at
            h.lacks(event, group, since=at + 1, until=back_at)
            tombstone = fenced(h, event, group, back_at, by=rollback)
            rows = event, tombstone, undone
            h.say(V.REFUSED, event, group, since=back_at, rows=rows, arrival=tombstone)
            continue
        is_concerned = group.service == refusing.service
        moved = at + 2 if is_concerned else None
        if event_type in group.undoes:
            tombstone = comes_before_its_event(h, event, rollback, group)
            h.lacks(event, group, since=at + 1, until=tombstone.born_at, moved=moved)
        else:
            h.lacks(event, group, since=at + 1, moved=moved)


def record_is_lost_before_another_of_its_key(h: History) -> None:
    """A group lacks an event, and has applied a later one of its key."""
    event_type, groups = some_type(h)
    lacking = h.random.choice(groups)
    at, key = some_time(h), h.new_key()
    for number in range(2):
        event = h.written(event_type, at + number, key=key)
        h.sent(event, at + number)
        if number == 0:
            h.lacks(event, lacking, since=at)
        having = [group for group in groups if number or group != lacking]
        applied_at_once(h, event, having, at + number)


def records_of_a_key_are_lost(h: History) -> None:
    """A group lacks several events of one key, and has no later one."""
    event_type, groups = some_type(h)
    lacking = h.random.choice(groups)
    at, key = some_time(h), h.new_key()
    for number in range(h.random.randint(2, 3)):
        event = h.written(event_type, at + number, key=key)
        h.sent(event, at + number)
        h.lacks(event, lacking, since=at + number)
        applied_at_once(h, event, [g for g in groups if g != lacking], at + number)


def record_of_a_replayed_event_is_lost(h: History) -> None:
    """An event fails when its sends have no answer; long after, it is replayed, and is lost."""
    event_type, groups = some_type(h)
    at = some_time(h)
    again_at = at + h.random.choice((30, 2 * DAY, 4 * DAY, 8 * DAY))
    event = h.written(event_type, at)
    event.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1, unconfirmed=True)
    event.becomes(O.FAILED, at + 1, last_error="KafkaTimeoutError: no answer")
    event.becomes(O.INIT, again_at, attempts=0, due_at=again_at, last_error=None)
    event.becomes(O.PROCESSING, again_at, attempts=1, lease_until=again_at + 1)
    event.becomes(O.PROCESSED, again_at + 1)
    lacking = h.random.sample(groups, h.random.randint(1, len(groups)))
    for group in groups:
        h.say(V.PARKED, event, group, since=at + 1, until=again_at)
        if group not in lacking:
            applied_at_once(h, event, [group], again_at + 1, first_at=at)
            continue
        known = {"since": again_at + 1, "moved": again_at + 1, "rows": (event,)}
        h.say(V.MISSING_DOWNSTREAM, event, group, trace=at, **known)
        # A run cannot know whether the group has handled the first record, and purged its row.
        h.say(V.TOO_OLD, event, group, trace=again_at + 1, ambiguous_since=at, **known)


def is_applied_twice(h: History) -> None:
    """An event arrives again, days later, at groups some of which have purged its row.

    Its relay ended before it recorded the sending, and another one sends the event days later. Or a
    group has lost its offsets, and reads its topic from the beginning.
    """
    event_type, groups = some_type(h)
    at = some_time(h)
    again_at = at + h.random.choice((30, 2 * DAY, 4 * DAY, 8 * DAY))
    is_noted = h.random.random() < 0.5
    event = h.written(event_type, at)
    event.becomes(O.PROCESSING, at, attempts=1, lease_until=at + 2)
    if is_noted:
        event.becomes(O.PROCESSED, at + 1)
    else:
        event.becomes(O.PROCESSING, again_at, attempts=2, lease_until=again_at, unconfirmed=True)
        event.becomes(O.PROCESSED, again_at)
    first_at = at + 1 if is_noted else at
    for group in groups:
        first = h.received(event, group, at + 1)
        h.applied(first, at + 2)
        if not is_noted:
            h.say(V.STUCK, event, group, since=at + 2, until=again_at, moved=at + 2, arrival=first)
        kept = h.setting.retention[group.service]
        is_known = kept is None or again_at <= first.settled_at + kept + 1
        known = {"since": at + 2 if is_noted else again_at, "arrival": first}
        h.say(V.MATCHED, event, group, rows=(event, first), **known)
        if not is_known:
            first.gone_at = first.settled_at + kept + 1
            applied_at_once(h, event, [group], again_at, first_at=first_at)


def nobody_sends(h: History) -> None:
    """No relay claims the event, or a relay has skipped it."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    if h.random.random() < 0.5:
        event.becomes(O.PROCESSING, at + 1, attempts=1, lease_until=at + 3)
    h.waits(event, groups)


def is_passed_over(h: History) -> None:
    """An event is replayed and never sent, while later ones of its key settle until each night."""
    event_type, groups = some_type(h)
    at, key = some_time(h), h.new_key()
    event = h.written(event_type, at, key=key)
    event.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1)
    event.becomes(O.FAILED, at + 1, last_error="MessageSizeTooLarge: refused")
    event.becomes(O.INIT, at + 2, attempts=0, due_at=at + 2, last_error=None)
    for group in groups:
        h.say(V.PARKED, event, group, since=at + 1, until=at + 2)
    h.waits(event, groups)
    for night in h.setting.nights:
        later = int(night.at) - 2
        if later > at + 2:
            other = h.written(event_type, later, key=key)
            h.sent(other, later)
            applied_at_once(h, other, groups, later)


def nobody_notes_that_it_was_sent(h: History) -> None:
    """A relay ended between the acknowledgement and its settlement: the event has arrived."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    event.becomes(O.PROCESSING, at, attempts=1, lease_until=at + 2)
    for group in groups:
        arrival = h.received(event, group, at + 1)
        h.applied(arrival, at + 2)
        h.say(V.STUCK, event, group, since=at + 2, moved=at + 2, arrival=arrival)


def nobody_handles(h: History) -> None:
    """A group has received the event, and no worker of the group continues with it."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at + 1)
    left = h.random.choice(groups)
    for group in groups:
        if group == left:
            status = h.random.choice((I.INIT, I.PROCESSING))
            arrival = h.received(event, group, at + 2, status=status)
            h.is_left(event, arrival, group, since=at + 2)
        else:
            applied(h, event, group, at + 1)


def broker_refuses(h: History) -> None:
    """The event is parked, or is a half message of unknown outcome."""
    event_type, groups = some_type(h)
    at = some_time(h)
    if h.random.random() < 0.5:
        event = h.written(event_type, at, status=O.HALF, due=at + 60)
        parked_at = at + 60
        event.becomes(O.UNRESOLVED, parked_at, last_error="its outcome is unknown")
    else:
        event = h.written(event_type, at)
        event.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1)
        parked_at = at + 1
        event.becomes(O.FAILED, parked_at, last_error="MessageSizeTooLarge: refused")
    for group in groups:
        h.say(V.PARKED, event, group, since=parked_at)


def _given_up(h: History) -> tuple[Life, Group, Life, int]:
    """Let one group give an event up; return the event, the group, the rollback, and the time."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at + 1)
    refusing = h.random.choice(groups)
    arrival = h.received(event, refusing, at + 2)
    rollback = h.gave_up(arrival, at + 3)
    rows = event, arrival, rollback
    h.say(V.REFUSED, event, refusing, since=at + 3, rows=rows, arrival=arrival)
    for group in groups:
        if group != refusing:
            other = h.received(event, group, at + 2)
            h.applied(other, at + 2)
            grounds = (arrival,) if group.service == refusing.service else ()
            rows = event, other, *grounds
            h.say(V.MATCHED, event, group, since=at + 3, rows=rows, arrival=other)
    return event, refusing, rollback, at + 3


def _compensating(h: History, rollback: Life) -> list[Group | str]:
    """Return all groups that should receive a rollback."""
    return [UNDO, *h.setting.undoers(rollback.columns["event_type"])]


def rollback_is_stuck(h: History) -> None:
    """No relay sends a rollback."""
    _, _, rollback, _ = _given_up(h)
    h.waits(rollback, _compensating(h, rollback))


def rollback_is_lost(h: History) -> None:
    """The broker acknowledges a rollback and loses it for some of the groups."""
    _, _, rollback, at = _given_up(h)
    h.sent(rollback, at + 1)
    groups = _compensating(h, rollback)
    lacking = h.random.sample(groups, h.random.randint(1, len(groups)))
    for group in lacking:
        h.lacks(rollback, group, since=at + 1)
    if UNDO not in lacking:
        arrival = h.compensated(rollback, at + 2)
        h.say(V.MATCHED, rollback, UNDO, since=at + 3, rows=(rollback, arrival), arrival=arrival)
    returned_to_others(h, rollback, at + 1, *lacking)


def rollback_is_refused(h: History) -> None:
    """The broker refuses a rollback permanently."""
    _, _, rollback, at = _given_up(h)
    rollback.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1)
    rollback.becomes(O.FAILED, at + 1, last_error="TopicAuthorizationFailed")
    for group in _compensating(h, rollback):
        h.say(V.PARKED, rollback, group, since=at + 1)


def is_compensated_twice(h: History) -> None:
    """A group has lost its offsets, and receives a rollback again whose row it has purged."""
    _, _, rollback, at = _given_up(h)
    first = returned(h, rollback, at)
    kept = h.setting.retention[first.service]
    again_at = at + h.random.choice((2 * DAY, 4 * DAY, 8 * DAY))
    if kept is None or again_at <= first.settled_at + kept + 1:
        return
    first.gone_at = first.settled_at + kept + 1
    again = h.compensated(rollback, again_at)
    known = {"rows": (rollback, again), "arrival": again, "first_at": rollback.settled_at}
    h.say(V.MATCHED, rollback, UNDO, since=again_at + 1, **known)


def nobody_compensates(h: History) -> None:
    """A rollback has arrived, and no worker continues with it in one of the groups."""
    _, _, rollback, at = _given_up(h)
    h.sent(rollback, at + 1)
    group = _all_but_one_compensate(h, rollback, at + 1)
    arrival = h.received(rollback, group, at + 2, status=h.random.choice((I.INIT, I.PROCESSING)))
    h.is_left(rollback, arrival, group, since=at + 2)


def _all_but_one_compensate(h: History, rollback: Life, sent_at: int) -> Group | str:
    """Let all groups but one compensate; return the one."""
    group = h.random.choice(_compensating(h, rollback))
    if group != UNDO:
        arrival = h.compensated(rollback, sent_at + 1)
        rows = rollback, arrival
        h.say(V.MATCHED, rollback, UNDO, since=sent_at + 2, rows=rows, arrival=arrival)
    returned_to_others(h, rollback, sent_at, group)
    return group


def compensation_fails(h: History) -> None:
    """A compensation fails permanently; an operator may discard it later."""
    _, _, rollback, at = _given_up(h)
    h.sent(rollback, at + 1)
    group = _all_but_one_compensate(h, rollback, at + 1)
    arrival = h.received(rollback, group, at + 2)
    arrival.becomes(I.DEAD, at + 3, attempts=LIMIT, last_error="ValueError: no such order")
    if h.random.random() < 0.5:
        h.say(V.PARKED, rollback, group, since=at + 3, arrival=arrival)
        return
    seen_at = at + h.random.choice((30, 2000))
    arrival.becomes(I.DISCARDED, seen_at, attempts=LIMIT, last_error="ValueError: no such order")
    known = {"arrival": arrival}
    h.say(V.PARKED, rollback, group, since=at + 3, until=seen_at, **known)
    h.say(V.DISCARDED, rollback, group, since=seen_at, rows=(rollback, arrival), **known)


BROKEN = (
    record_is_lost,
    record_is_lost_and_taken_back,
    record_is_lost_before_another_of_its_key,
    record_of_a_replayed_event_is_lost,
    is_applied_twice,
    nobody_sends,
    is_passed_over,
    nobody_notes_that_it_was_sent,
    nobody_handles,
    broker_refuses,
    rollback_is_stuck,
    rollback_is_lost,
    rollback_is_refused,
    is_compensated_twice,
    nobody_compensates,
    compensation_fails,
)
