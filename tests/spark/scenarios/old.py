"""Scenarios around the horizon."""

from __future__ import annotations

from datetime import timedelta

from tests.spark.scenarios.one_sided import ghost_of, ghost_of_some
from tests.spark.scenarios.vocabulary import HOUR, TYPES, I, O, Scenario, V, some
from tests.spark.world import DAY, MARGIN, RETENTION, Planted, World


def perhaps_purged(w: World) -> None:
    """Five minutes older or younger than the shorter retention less the margin."""
    for difference, is_old in ((5, True), (-5, False)):
        type_, group = some(w)
        kept = min(RETENTION[s] for s in (type_.partition(".")[0], group.service) if s in RETENTION)
        age = kept / timedelta(minutes=1) - MARGIN / timedelta(minutes=1) + difference
        absent = w.event(type_, age=age)
        w.report(absent, group, V.TOO_OLD if is_old else V.MISSING_DOWNSTREAM)
        w.rest(absent, group)
        verdict = V.TOO_OLD if is_old else V.UNKNOWN_UPSTREAM
        ghost_of(w, type_, group, verdict, I.PROCESSED, age)
        for is_answered in (False, True):
            event = w.event(type_, age=age)
            w.got(event, group, I.MAX_RECONSUMED)
            w.rest(event, group)
            if is_answered:
                verdict = V.TOO_OLD if is_old else V.ROLLBACK_NOT_COMPENSATED
                w.report(event, group, V.REFUSED)
                w.returned(w.rollback(event, group.service, verdict=verdict), compensated=False)
            else:
                verdict = V.TOO_OLD if is_old else V.NEITHER_EFFECT_NOR_COMPENSATION
                w.report(event, group, verdict)


def old_and_whole(w: World) -> None:
    w.rest(w.event(w.random.choice(TYPES), age=40 * DAY))


def old_and_sent_late(w: World) -> None:
    """Written before all retentions, sent much later on purpose: no purge explains the gap."""
    type_, group = some(w)
    event = w.event(type_, age=40 * DAY, settled_age=HOUR)
    w.report(event, group, V.MISSING_DOWNSTREAM)
    for other in event.groups:
        if other is not group:
            w.got(event, other, age=HOUR)
            w.report(event, other, V.MATCHED)


def second_week(w: World) -> None:
    """Outboxes keep their rows for less long than inboxes do."""
    for status in (I.PROCESSED, I.PROCESSED, I.FENCED, I.MAX_RECONSUMED):
        ghost_of_some(w, V.TOO_OLD, status, age=w.random.uniform(31, 60) * DAY)


def second_week_and_still_open(w: World) -> None:
    """Whatever the age of the event, its row is not settled, or moved just now."""
    ghost_of_some(w, V.STUCK, I.INIT, age=40 * DAY)
    type_, group = some(w)
    ghost = Planted(
        id=w.new_id(40 * DAY),
        upstream=type_.partition(".")[0],
        type=type_,
        key=w.new_key(),
        payload="{}",
        written_age=40 * DAY,
    )
    w.got(ghost, group, age=40 * DAY, settled_age=0)
    w.report(ghost, group, V.IN_FLIGHT)


def old_and_changed(w: World) -> None:
    """Rows that the outbox still has are compared, however old they are."""
    type_, group = some(w)
    for verdict, change in (
        (V.PAYLOAD_DIFFERS, {"payload": "{}"}),
        (V.ENVELOPE_DIFFERS, {"key": "another"}),
    ):
        event = w.event(type_, age=40 * DAY)
        w.got(event, group, **change)
        w.report(event, group, verdict)
        w.rest(event, group)


def old_and_parked(w: World) -> None:
    """A row that waits for an operator is never purged, and its group may have an older row."""
    type_, group = some(w)
    w.rest(w.event(type_, O.FAILED, age=50 * DAY), verdict=V.PARKED)
    arrived = w.event(type_, O.FAILED, age=50 * DAY)
    w.got(arrived, group)
    w.report(arrived, group, V.STATUS_DISAGREES)
    w.rest(arrived, group, verdict=V.PARKED)


SCENARIOS: tuple[Scenario, ...] = (
    perhaps_purged,
    second_week,
    second_week_and_still_open,
    old_and_changed,
    old_and_parked,
    old_and_whole,
    old_and_sent_late,
)
