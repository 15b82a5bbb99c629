"""Stories without a mismatch: whatever a run sees of them, it must not report one."""

from __future__ import annotations

from collections.abc import Sequence

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import UNDO, Group
from tests.verification.oracle.timeline import DAY, Life

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what happens in stories


def some_type(h: History) -> tuple[str, list[Group]]:
    """Choose an event type that has handlers, and its groups."""
    types = sorted({each for group in h.setting.groups for each in group.types})
    chosen = h.random.choice(types)
    return chosen, h.setting.receivers(chosen)


def some_time(h: History) -> int:
    """Choose when a story begins: at any time, or in the hours before a night."""
    nights = h.setting.nights
    if h.random.random() < 0.5:
        return int(h.random.choice(nights).at) - h.random.randint(1, 120)
    return h.random.randint(1, int(nights[-1].at))


def some_while(h: History) -> int:
    """Choose how long a step takes: mostly minutes, sometimes hours or days."""
    return h.random.choice((0, 1, 1, 2, 3, 3, 60, 700, DAY, 2 * DAY))


def happens_at_once(h: History, at: int, event_type: str, groups: Sequence[Group]) -> None:
    """Let an event be sent and applied within a minute."""
    event = h.written(event_type, at)
    h.sent(event, at)
    applied_at_once(h, event, groups, at)


def applied_at_once(
    h: History, event: Life, groups: Sequence[Group], at: int, *, first_at: int | None = None
) -> None:
    """Let groups receive an event and apply it at their first attempt.

    `first_at`: since when they may have received an earlier record of it, as far as is known.
    """
    for group in groups:
        arrival = h.received(event, group, at)
        h.applied(arrival, at)
        known = {"rows": (event, arrival), "arrival": arrival, "first_at": first_at}
        h.say(V.MATCHED, event, group, since=at, **known)


def happens(h: History, at: int, event_type: str, groups: Sequence[Group]) -> list[Life]:
    """Let an event happen, be sent, and be applied by these groups; return it and its arrivals."""
    event = h.written(event_type, at)
    sent_at = at + some_while(h)
    h.waits(event, groups, until=sent_at)
    h.sent(event, sent_at)
    return [event, *(applied(h, event, group, sent_at) for group in groups)]


def applied(h: History, event: Life, group: Group, sent_at: int) -> Life:
    """Let a group receive an event and, perhaps after a number of attempts, apply it."""
    r = h.random
    received_at = sent_at + some_while(h)
    h.lacks(event, group, since=sent_at, until=received_at)
    arrival = h.received(event, group, received_at, status=r.choice((I.INIT, I.PROCESSING)))
    done_at = received_at
    if arrival.status is I.PROCESSING:
        for attempt in range(2, r.choice((1, 1, 2, 4)) + 1):
            due = done_at + some_while(h)
            retry = {"attempts": attempt, "due_at": due, "last_error": "TimeoutError"}
            arrival.becomes(I.PROCESSING, done_at, **retry)
            done_at = due
    left_alone = some_while(h)
    h.is_left(event, arrival, group, since=done_at, until=done_at + left_alone)
    done_at += left_alone
    h.applied(arrival, done_at)
    h.say(V.MATCHED, event, group, since=done_at, rows=(event, arrival), arrival=arrival)
    return arrival


def is_applied(h: History) -> None:
    """All groups apply the event."""
    event_type, groups = some_type(h)
    happens(h, some_time(h), event_type, groups)


def is_given_up(h: History) -> None:
    """Some groups give the event up, and its service compensates it, once."""
    event_type, groups = some_type(h)
    refusing = h.random.sample(groups, h.random.randint(1, len(groups)))
    refused(h, some_time(h), event_type, refusing)


def refused(h: History, at: int, event_type: str, refusing: Sequence[Group]) -> None:
    """Let these groups give an event up; the others apply it."""
    event = h.written(event_type, at)
    sent_at = at + h.random.randint(0, 3)
    h.sent(event, sent_at)
    arrivals = {group: h.received(event, group, sent_at) for group in refusing}
    rollbacks: dict[str, Life] = {}
    gave_up_at = sent_at
    for group, arrival in arrivals.items():
        gave_up_at += h.random.randint(0, 2)
        if group.service in rollbacks:
            # The compensating group counts for all groups of a service.
            arrival.becomes(I.MAX_RECONSUMED, gave_up_at, last_error="Refused: no stock")
        else:
            rollbacks[group.service] = h.gave_up(arrival, gave_up_at)
        rollback = rollbacks[group.service]
        rows: tuple[Life, ...] = (event, arrival, rollback)
        h.say(V.REFUSED, event, group, since=gave_up_at, rows=rows, arrival=arrival)
    for group in h.setting.receivers(event_type):
        if group in refusing:
            continue
        arrival = h.received(event, group, sent_at)
        h.applied(arrival, sent_at)
        grounds = [arrivals[each] for each in refusing if each.service == group.service]
        rows = event, arrival, *grounds
        h.say(V.MATCHED, event, group, since=gave_up_at, rows=rows, arrival=arrival)
    first: Life | None = None
    for number, rollback in enumerate(rollbacks.values()):
        arrival = returned(h, rollback, gave_up_at + 4 * number, after=first)
        first = first or arrival


def returned(
    h: History, rollback: Life, at: int, *, after: Life | None = None, but: Group | None = None
) -> Life:
    """Let a rollback be sent, and compensated unless an earlier one was."""
    sent_at = at + h.random.randint(0, 3)
    h.sent(rollback, sent_at)
    arrival = h.compensated(rollback, sent_at + 2, first=after is None)
    rows = rollback, arrival, *((after,) if after else ())
    h.say(V.MATCHED, rollback, UNDO, since=sent_at + 3, rows=rows, arrival=arrival)
    returned_to_others(h, rollback, sent_at, but)
    return arrival


def returned_to_others(
    h: History, rollback: Life, sent_at: float, *but: Group | str | None
) -> None:
    """Let groups of other services compensate what they have applied, once."""
    for group in h.setting.undoers(rollback.columns["event_type"]):
        if group not in but:
            returned_to(h, rollback, group, sent_at)


def returned_to(h: History, rollback: Life, group: Group, sent_at: float) -> None:
    """Let one such group receive a rollback, which may be the second one of its event."""
    event = h.arrival_of(rollback.columns["causation_id"], group)
    undone = event and h.undone_by(event)
    is_first = undone is None and event is not None and event.status is I.PROCESSED
    arrival = h.compensated(rollback, sent_at + 2, group=group, first=is_first)
    # Without a compensation, the group's row of the event proves that there is no effect.
    grounds = arrival if is_first else undone or event
    if grounds is not None:
        rows = rollback, arrival, grounds
        h.say(V.MATCHED, rollback, group, since=sent_at + 3, rows=rows, arrival=arrival)


def comes_before_its_event(h: History, event: Life, rollback: Life, group: Group) -> Life:
    """Let a group receive a rollback first and write a tombstone for its event."""
    arrival = h.arrival_of(rollback.event_id, group)
    assert arrival is not None
    tombstone = h.received(event, group, arrival.born_at, status=I.FENCED)
    rows, back_at = (event, tombstone, arrival), arrival.settled_at
    h.say(V.REFUSED, event, group, since=back_at, rows=rows, arrival=tombstone)
    rows = rollback, tombstone, arrival
    h.say(V.MATCHED, rollback, group, since=back_at, rows=rows, arrival=arrival)
    return tombstone


def is_delayed(h: History) -> None:
    """The event is sent days later, as requested, or cancelled before."""
    event_type, groups = some_type(h)
    at = some_time(h)
    due = at + h.random.choice((90, DAY, 3 * DAY))
    event = h.written(event_type, at, due=due, waiting=True)
    if h.random.random() < 0.3:
        end = h.random.randint(at, due)
        event.becomes(O.DISCARDED, end)
        for group in groups:
            h.say(V.NEVER_SENT, event, group, since=end, rows=(event,))
        return
    h.sent(event, due)
    for group in groups:
        applied(h, event, group, due)


def is_prepared(h: History) -> None:
    """The event is a half message whose outcome is reported late, or is a rollback."""
    event_type, groups = some_type(h)
    at = some_time(h)
    latest = at + h.random.choice((60, DAY))
    event = h.written(event_type, at, status=O.HALF, due=latest)
    end = h.random.randint(at, latest)
    if h.random.random() < 0.4:
        event.becomes(O.DISCARDED, end)
        for group in groups:
            h.say(V.NEVER_SENT, event, group, since=end, rows=(event,))
        return
    event.becomes(O.INIT, end, due_at=end)
    h.sent(event, end + 1)
    for group in groups:
        applied(h, event, group, end + 1)


def is_parked_and_replayed(h: History) -> None:
    """The broker refuses the event; an operator replays or discards it."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    event.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1)
    failed_at = at + h.random.randint(0, 3)
    event.becomes(O.FAILED, failed_at, last_error="MessageSizeTooLarge: refused")
    seen_at = failed_at + h.random.choice((10, 600, DAY, 2 * DAY))
    for group in groups:
        h.say(V.PARKED, event, group, since=failed_at, until=seen_at)
    if h.random.random() < 0.3:
        event.becomes(O.DISCARDED, seen_at, last_error="MessageSizeTooLarge: refused")
        for group in groups:
            h.say(V.NEVER_SENT, event, group, since=seen_at, rows=(event,))
        return
    event.becomes(O.INIT, seen_at, attempts=0, due_at=seen_at, last_error=None)
    h.sent(event, seen_at + 2)
    for group in groups:
        applied(h, event, group, seen_at + 2)


def is_retried_before_others(h: History) -> None:
    """The broker is unreachable for hours: an event is retried, a later one of its key waits."""
    event_type, groups = some_type(h)
    at = some_time(h)
    key = h.new_key()
    first = h.written(event_type, at, key=key)
    second = h.written(event_type, at + 1, holds_key=True, key=key)
    due = at + h.random.choice((30, 300, DAY))
    first.becomes(O.PROCESSING, at + 1, attempts=1, lease_until=at + 2)
    first.becomes(O.INIT, at + 2, due_at=due, waiting=True, holds_key=True)
    for number, event in enumerate((first, second)):
        h.sent(event, due + number)
        applied_at_once(h, event, groups, due + number)


def is_waited_for_downstream(h: History) -> None:
    """A group retries an event for hours, and the next one of its key waits."""
    event_type, groups = some_type(h)
    at = some_time(h)
    key = h.new_key()
    events = [h.written(event_type, at + number, key=key) for number in (0, 1)]
    for event in events:
        h.sent(event, at + 1)
    due = at + h.random.choice((30, 300, DAY))
    for group in groups:
        first, second = (
            h.received(event, group, at + 1, status=status)
            for event, status in zip(events, (I.PROCESSING, I.INIT), strict=True)
        )
        first.becomes(I.PROCESSING, at + 1, attempts=2, due_at=due)
        for number, (event, arrival) in enumerate(zip(events, (first, second), strict=True)):
            h.applied(arrival, due + number)
            rows = event, arrival
            h.say(V.MATCHED, event, group, since=due + number, rows=rows, arrival=arrival)


def is_taken_back_in_a_chain(h: History) -> None:
    """An event that a handler wrote is given up, so the handled event is taken back as well."""
    chains = [
        (event_type, group, next_type, last)
        for event_type in sorted({t for g in h.setting.groups for t in g.types})
        for group in h.setting.receivers(event_type)
        for next_type in h.setting.types_of(group.service)
        for last in h.setting.receivers(next_type)
        if last.service != group.service
    ]
    if not chains:
        is_given_up(h)
        return
    event_type, group, next_type, last = h.random.choice(chains)
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at)
    arrivals = {each: h.received(event, each, at) for each in h.setting.receivers(event_type)}
    for arrival in arrivals.values():
        h.applied(arrival, at + 1)
    caused = h.written(next_type, at + 1, because=event)
    h.sent(caused, at + 1)
    late = at + 1 + some_while(h)
    others = [each for each in h.setting.receivers(next_type) if each != last]
    given_up = h.received(caused, last, at + 2)
    given_up.becomes(I.PROCESSING, at + 2, attempts=2, due_at=late + 1)
    for each in others:
        arrival = h.received(caused, each, at + 2)
        h.applied(arrival, at + 2)
        grounds = (given_up,) if each.service == last.service else ()
        known = {"rows": (caused, arrival, *grounds), "arrival": arrival}
        h.say(V.MATCHED, caused, each, since=late + 1, **known)
    rollback = h.gave_up(given_up, late + 1)
    known = {"rows": (caused, given_up, rollback), "arrival": given_up}
    h.say(V.REFUSED, caused, last, since=late + 1, **known)
    returned_caused = returned(h, rollback, late + 1)
    # With its compensation, the middle service takes back the event that it had handled.
    passed_on = h.rollback(arrivals[group], late + 8)
    returned(h, passed_on, late + 8)
    for each, arrival in arrivals.items():
        reasons = [returned_caused, caused] if each.service == group.service else []
        rows = (event, arrival, *reasons)
        h.say(V.MATCHED, event, each, since=late + 8, rows=rows, arrival=arrival)


HEALTHY = (
    is_applied,
    is_given_up,
    is_delayed,
    is_prepared,
    is_parked_and_replayed,
    is_retried_before_others,
    is_waited_for_downstream,
    is_taken_back_in_a_chain,
)
