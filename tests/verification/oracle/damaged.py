"""Stories that SQL, a defect or a restored backup has altered, within minutes of their end.

A further run reads what has moved since a good run, and a later alteration does not move a row.
Finding it takes a full run, or a database that is known to have another past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import returned, returned_to_others, some_time, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import LIMIT, UNDO, Group
from tests.verification.oracle.timeline import DAY, Life

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what happens in stories


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """An event that was applied by all groups but `group` within minutes."""

    event: Life
    at: int
    group: Group
    others: tuple[tuple[Group, Life], ...]
    trace: float
    """Since when groups can have received it, as far as a run knows."""


def _applied_by_others(h: History, *, again: bool = False) -> Applied:
    """Let an event be applied, which may be delayed; with `again`, perhaps sent twice."""
    event_type, groups = some_type(h)
    at = some_time(h)
    delay = h.random.choice((0, 0, DAY, 4 * DAY, 8 * DAY))
    columns = {"biz_key": f"biz-{len(h.lives)}", "key": h.new_key(), "waiting": delay > 0}
    event = h.written(event_type, at - delay, due=at, **columns)
    is_again = again and h.random.random() < 0.5
    if is_again:
        event.becomes(O.PROCESSING, at, attempts=1, lease_until=at)
        event.becomes(O.PROCESSING, at, attempts=2, lease_until=at + 1, unconfirmed=True)
    h.sent(event, at + 1)
    chosen = h.random.choice(groups)
    others = []
    for group in groups:
        if group != chosen:
            arrival = h.received(event, group, at + 1)
            h.applied(arrival, at + 2)
            others.append((group, arrival))
    return Applied(
        event=event,
        at=at + 2,
        group=chosen,
        others=tuple(others),
        trace=event.born_at if is_again else event.settled_at,
    )


def _others_match(h: History, a: Applied, *, until: float | None = None) -> None:
    for group, arrival in a.others:
        known = {} if until is None else {"until": until}
        rows = a.event, arrival
        h.say(V.MATCHED, a.event, group, since=a.at, rows=rows, arrival=arrival, **known)


def inbox_row_is_lost(h: History) -> None:
    """A group's row vanishes."""
    a = _applied_by_others(h)
    _others_match(h, a)
    arrival = h.received(a.event, a.group, a.at)
    h.applied(arrival, a.at)
    lost_at = a.at + 3
    h.say(V.MATCHED, a.event, a.group, since=a.at, until=lost_at, rows=(a.event,), arrival=arrival)
    arrival.gone_at = lost_at
    h.lacks(a.event, a.group, since=a.at - 1, until=a.at)
    sent_at = a.event.settled_at
    known = {"moved": sent_at, "trace": sent_at, "rows": (a.event,)}
    h.say(V.MISSING_DOWNSTREAM, a.event, a.group, since=lost_at, **known)


def outbox_row_is_lost(h: History) -> None:
    """The upstream's row vanishes."""
    a = _applied_by_others(h)
    arrival = h.received(a.event, a.group, a.at)
    h.applied(arrival, a.at)
    a.event.gone_at = a.at + 3
    for group, each in (*a.others, (a.group, arrival)):
        h.say(V.MATCHED, a.event, group, since=a.at, rows=(a.event, each), arrival=each)
        known = {"moved": a.at, "trace": a.event.born_at, "rows": (each,), "arrival": each}
        h.say(V.UNKNOWN_UPSTREAM, a.event, group, since=a.at + 3, **known)
        came_at = each.born_at
        known |= {"trace": came_at, "came_at": came_at, "ambiguous_since": a.event.born_at}
        h.say(V.TOO_OLD, a.event, group, since=a.at + 3, **known)


def outbox_denies(h: History) -> None:
    """The upstream's row states that the event was never sent."""
    a = _applied_by_others(h)
    arrival = h.received(a.event, a.group, a.at)
    h.applied(arrival, a.at)
    denied_at = a.at + 2
    a.event.is_said_to_be(O.DISCARDED, denied_at)
    for group, each in (*a.others, (a.group, arrival)):
        known = {"rows": (a.event, each), "arrival": each}
        h.say(V.MATCHED, a.event, group, since=a.at, until=denied_at, **known)
        h.say(V.STATUS_DISAGREES, a.event, group, since=denied_at, moved=denied_at, **known)


def content_differs(h: History) -> None:
    """A group has not received what was sent: the payload differs, or part of the envelope."""
    a = _applied_by_others(h)
    _others_match(h, a)
    arrival = h.received(a.event, a.group, a.at)
    verdict, changes = h.random.choice(
        (
            (V.PAYLOAD_DIFFERS, {"payload": '{"n": "another"}'}),
            (V.ENVELOPE_DIFFERS, {"key": "another"}),
            (V.ENVELOPE_DIFFERS, {"operation": "DELETE"}),
            (V.ENVELOPE_DIFFERS, {"biz_key": f"another-{len(h.lives)}"}),
        )
    )
    h.applied(arrival, a.at, **changes)
    rows = a.event, arrival
    h.say(verdict, a.event, a.group, since=a.at, rows=rows, arrival=arrival)


def _given_up(h: History) -> tuple[Applied, Life, Life]:
    a = _applied_by_others(h, again=True)
    arrival = h.received(a.event, a.group, a.at)
    return a, arrival, h.gave_up(arrival, a.at)


def _others_are_entitled(h: History, a: Applied, ground: Life) -> None:
    """Note that the groups other than the one that gave an event up are in order."""
    for group, arrival in a.others:
        grounds = (ground,) if group.service == a.group.service else ()
        rows = a.event, arrival, *grounds
        h.say(V.MATCHED, a.event, group, since=a.at, rows=rows, arrival=arrival)


def rollback_row_is_lost(h: History) -> None:
    """A group gave the event up, perhaps after days, and its rollback is missing."""
    a = _applied_by_others(h, again=True)
    _others_match(h, a)
    arrival = h.received(a.event, a.group, a.at)
    late = a.at + h.random.choice((0, 0, 60, 2 * DAY, 4 * DAY, 8 * DAY))
    arrival.becomes(I.PROCESSING, a.at, attempts=2, due_at=late)
    rollback = h.gave_up(arrival, late)
    rollback.gone_at = late + 1
    h.say(
        V.NEITHER_EFFECT_NOR_COMPENSATION,
        a.event,
        a.group,
        since=late + 1,
        moved=late,
        trace=late,
        # The upstream may have purged the event.
        rows=(arrival,),
        arrival=arrival,
    )


def was_tried_too_often(h: History) -> None:
    """A handler was called more often than allowed."""
    a, arrival, rollback = _given_up(h)
    _others_are_entitled(h, a, arrival)
    arrival.changes_by_hand(a.at, attempts=LIMIT + 1)
    returned(h, rollback, a.at + 1)
    rows = a.event, arrival, rollback
    known = {"rows": rows, "arrival": arrival, "by_limit": True}
    h.say(V.ATTEMPTS_DIFFER, a.event, a.group, since=a.at, **known)


def compensation_is_not_there(h: History) -> None:
    """A rollback was settled, and compensated nothing."""
    a, rollback = _given_up_and_refused(h)
    h.sent(rollback, a.at + 1)
    settled = h.compensated(rollback, a.at + 2, first=False)
    _is_not_compensated(h, rollback, UNDO, settled)
    returned_to_others(h, rollback, a.at + 1)


def rollback_is_settled_late(h: History) -> None:
    """The same for a rollback that was FAILED or DEAD for hours or days, and was then replayed."""
    a, rollback = _given_up_and_refused(h)
    again_at = a.at + h.random.choice((30, DAY, 4 * DAY, 8 * DAY))
    if h.random.random() < 0.5:
        rollback.becomes(O.PROCESSING, a.at, attempts=3, lease_until=a.at + 1)
        rollback.becomes(O.FAILED, a.at + 1, last_error="TopicAuthorizationFailed")
        for group in (UNDO, *h.setting.undoers(rollback.columns["event_type"])):
            h.say(V.PARKED, rollback, group, since=a.at + 1, until=again_at)
        rollback.becomes(O.INIT, again_at, attempts=0, due_at=again_at, last_error=None)
        h.sent(rollback, again_at)
        settled = h.compensated(rollback, again_at, first=False)
        returned_to_others(h, rollback, again_at)
    else:
        h.sent(rollback, a.at + 1)
        settled = h.received(rollback, UNDO, a.at + 1)
        settled.becomes(I.DEAD, a.at + 2, attempts=LIMIT, last_error="ValueError: no such order")
        h.say(V.PARKED, rollback, UNDO, since=a.at + 2, until=again_at, arrival=settled)
        replayed = {"attempts": 1, "due_at": again_at, "last_error": None}
        settled.becomes(I.PROCESSING, again_at, **replayed)
        h.applied(settled, again_at + 1)
        returned_to_others(h, rollback, a.at + 1)
    _is_not_compensated(h, rollback, UNDO, settled)


def _given_up_and_refused(h: History) -> tuple[Applied, Life]:
    a, arrival, rollback = _given_up(h)
    _others_are_entitled(h, a, arrival)
    rows = a.event, arrival, rollback
    h.say(V.REFUSED, a.event, a.group, since=a.at, rows=rows, arrival=arrival)
    return a, rollback


def _is_not_compensated(
    h: History, rollback: Life, group: Group | str, settled: Life, *grounds: Life, since: float = 0
) -> None:
    """Note that a rollback was settled without a compensation.

    If that was too late to know all possible compensations of its event, the case is ambiguous.
    """
    at, written = settled.settled_at, rollback.born_at
    known = {"since": since or at, "moved": at, "arrival": settled}
    rows = (rollback, settled, *grounds)
    h.say(V.ROLLBACK_NOT_COMPENSATED, rollback, group, trace=written, rows=rows, **known)
    late = {"trace": at, "ambiguous_since": written, "rows": (settled, *grounds)}
    h.say(V.TOO_OLD, rollback, group, **late, **known)


def effect_is_not_taken_back(h: History) -> None:
    """A group settled a rollback and compensated nothing; it had applied the event or does so late.

    If late, it has a tombstone until then, and no row of the rollback moves when the tombstone is
    lost.
    """
    choices = [
        (group, refusing, event_type)
        for group in h.setting.groups
        for event_type in group.undoes
        for refusing in h.setting.receivers(event_type)
        if refusing != group
    ]
    if not choices:
        compensation_is_not_there(h)
        return
    group, refusing, event_type = h.random.choice(choices)
    at = some_time(h)
    event, gave_up, rollback = _given_up_by(h, event_type, refusing, but=group, at=at)
    late = at + h.random.choice((5, 300, DAY, 2 * DAY)) if h.random.random() < 0.5 else None
    arrival = h.received(event, group, at + 1, status=I.FENCED if late else I.PROCESSING)
    if late is None:
        h.applied(arrival, at + 1)
    returned(h, rollback, at + 1, but=group)
    settled = h.compensated(rollback, rollback.settled_at + 1, group=group, first=False)
    since = settled.settled_at
    known = {"rows": (rollback, settled), "arrival": settled}
    if late is not None:
        rows = event, arrival, settled
        h.say(V.REFUSED, event, group, since=since, until=late, rows=rows, arrival=arrival)
        known_until = {**known, "rows": (rollback, settled, arrival)}
        h.say(V.MATCHED, rollback, group, since=since, until=late, **known_until)
        arrival.is_said_to_be(I.PROCESSED, late)
    grounds = (gave_up,) if group.service == refusing.service else ()
    rows = event, arrival, *grounds
    h.say(V.MATCHED, event, group, since=late or since, rows=rows, arrival=arrival)
    _is_not_compensated(h, rollback, group, settled, arrival, since=late or since)
    # Without its row of the event, the group may have had no effect.
    left = {**known, "moved": since, "purged": (arrival,)}
    h.say(V.TOO_OLD, rollback, group, since=late or since, **left)


def _given_up_by(
    h: History, event_type: str, refusing: Group, *, but: Group, at: int
) -> tuple[Life, Life, Life]:
    """Let a group give an event up, and others apply it; return it, the row and the rollback."""
    event = h.written(event_type, at)
    h.sent(event, at)
    gave_up = h.received(event, refusing, at)
    rollback = h.gave_up(gave_up, at)
    rows = event, gave_up, rollback
    h.say(V.REFUSED, event, refusing, since=at, rows=rows, arrival=gave_up)
    for group in h.setting.receivers(event_type):
        if group not in (refusing, but):
            arrival = h.received(event, group, at)
            h.applied(arrival, at)
            grounds = (gave_up,) if group.service == refusing.service else ()
            rows = event, arrival, *grounds
            h.say(V.MATCHED, event, group, since=at, rows=rows, arrival=arrival)
    return event, gave_up, rollback


def effect_was_kept(h: History) -> None:
    """The row of a group that gave the event up states an effect; its rollback was compensated."""
    a, arrival, rollback = _given_up(h)
    arrival.is_said_to_be(I.PROCESSED, a.at)
    returned(h, rollback, a.at + 1)
    for group, each in (*a.others, (a.group, arrival)):
        undone = h.undone_by(each)
        known = {"rows": (a.event, each), "arrival": each}
        if group.service != a.group.service:
            h.say(V.MATCHED, a.event, group, since=a.at, **known)
            continue
        if undone is not None:
            known["rows"] = (a.event, each, undone)
            h.say(V.MATCHED, a.event, group, since=undone.settled_at, **known)
            continue
        wrong = {**known, "rows": (a.event, each, rollback)}
        _is_not_called_for(h, a, group, back_at=a.at, **wrong)


def _is_not_called_for(
    h: History, a: Applied, group: Group, *, back_at: float, **wrong: Any
) -> None:
    """Note that an effect was taken back without a reason; if too late to know, that it may be."""
    known = {"since": back_at, "moved": back_at, **wrong}
    h.say(V.EFFECT_DESPITE_ROLLBACK, a.event, group, trace=a.trace, **known)
    known |= {"trace": back_at, "came_at": back_at, "ambiguous_since": a.trace}
    h.say(V.TOO_OLD, a.event, group, **known)


def is_taken_back_days_later(h: History) -> None:
    """A service takes back an event that its groups applied long ago, without a reason."""
    a = _applied_by_others(h, again=True)
    arrival = h.received(a.event, a.group, a.at)
    h.applied(arrival, a.at)
    back_at = a.at + h.random.choice((30, 300, DAY, 2 * DAY))
    rollback = h.rollback(arrival, back_at)
    returned(h, rollback, back_at)
    for group, each in (*a.others, (a.group, arrival)):
        known = {"rows": (a.event, each), "arrival": each}
        if group.service != a.group.service:
            h.say(V.MATCHED, a.event, group, since=a.at, **known)
            continue
        h.say(V.MATCHED, a.event, group, since=a.at, until=back_at, **known)
        undone = h.undone_by(each)
        if undone is not None:
            known["rows"] = (a.event, each, undone)
            h.say(V.MATCHED, a.event, group, since=undone.settled_at, **known)
            continue
        wrong = {**known, "rows": (a.event, each, rollback)}
        _is_not_called_for(h, a, group, back_at=back_at, **wrong)


def is_parked_without_a_reason(h: History) -> None:
    """A row was set to FAILED with SQL, without an error: a further run finds its movement."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    event.is_said_to_be(O.FAILED, at + 1)
    for group in groups:
        h.say(V.PARKED, event, group, since=at + 1, unlisted=True)


def is_fenced_without_a_rollback(h: History) -> None:
    """A tombstone replaces an event that no rollback has taken back."""
    a = _applied_by_others(h)
    _others_match(h, a)
    arrival = h.received(a.event, a.group, a.at)
    arrival.is_said_to_be(I.FENCED, a.at)
    known = {"moved": a.at, "trace": a.trace, "rows": (a.event, arrival)}
    h.say(V.STATUS_DISAGREES, a.event, a.group, since=a.at, arrival=arrival, **known)


def is_left_under_a_former_name(h: History) -> None:
    """An outbox has an event under a name that no service has: its receivers are unknown."""
    event_type, _ = some_type(h)
    event = h.written(event_type, some_time(h))
    event.source = "shop"
    event.becomes(O.PROCESSING, event.born_at, attempts=3, lease_until=event.born_at + 1)
    event.becomes(O.FAILED, event.born_at + 1, last_error="MessageSizeTooLarge: refused")


def copy_lacks_the_newest(h: History) -> None:
    """A database is restored from a copy that was made before the newest of its events arrived."""
    *nights, _ = h.setting.nights
    event_type, groups = some_type(h)
    restored = h.random.choice(groups).service
    night = int(h.random.choice(nights).at)
    # By its writer's clock, which is ahead, it is the newest of all.
    event = h.written(event_type, night - 60, id_at=night + 1)
    h.sent(event, night - 59)
    lost_at = night + 100
    for group in groups:
        arrival = h.received(event, group, night - 59)
        h.applied(arrival, night - 58)
        rows = event, arrival
        if group.service == restored:
            arrival.gone_at = lost_at
            known = {"moved": night - 59, "trace": night - 59, "rows": (event,)}
            h.say(V.MISSING_DOWNSTREAM, event, group, since=lost_at, **known)
        h.say(V.MATCHED, event, group, since=night - 58, rows=rows, arrival=arrival)


DAMAGED = (
    inbox_row_is_lost,
    outbox_row_is_lost,
    outbox_denies,
    content_differs,
    rollback_row_is_lost,
    was_tried_too_often,
    compensation_is_not_there,
    rollback_is_settled_late,
    effect_is_not_taken_back,
    effect_was_kept,
    is_taken_back_days_later,
    is_parked_without_a_reason,
    is_fenced_without_a_rollback,
    is_left_under_a_former_name,
    copy_lacks_the_newest,
)
