"""Old: around the horizon."""

from __future__ import annotations

from datetime import timedelta

from tests.spark.scenarios.one_sided import ghost_of
from tests.spark.scenarios.vocabulary import HOUR, TYPES, I, Scenario, V, some
from tests.spark.world import DAY, MARGIN, RETENTION, World


def perhaps_purged(w: World) -> None:
    """Older than the shorter retention, less the margin, by five minutes; or younger by them."""
    for difference, is_old in ((5, True), (-5, False)):
        type_, group = some(w)
        kept = min(RETENTION[s] for s in (type_.partition(".")[0], group.service) if s in RETENTION)
        age = kept / timedelta(minutes=1) - MARGIN / timedelta(minutes=1) + difference
        absent = w.event(type_, age=age)
        w.say(absent, group, V.TOO_OLD if is_old else V.MISSING_DOWNSTREAM)
        w.rest(absent, group)
        verdict = V.TOO_OLD if is_old else V.UNKNOWN_UPSTREAM
        ghost_of(w, type_, group, verdict, I.PROCESSED, age)
        for is_answered in (False, True):
            event = w.event(type_, age=age)
            w.got(event, group, I.MAX_RECONSUMED)
            w.rest(event, group)
            if is_answered:
                verdict = V.TOO_OLD if is_old else V.ROLLBACK_NOT_COMPENSATED
                w.say(event, group, V.REFUSED)
                w.returned(w.rollback(event, group.service, verdict=verdict), compensated=False)
            else:
                verdict = V.TOO_OLD if is_old else V.NEITHER_EFFECT_NOR_COMPENSATION
                w.say(event, group, verdict)


def old_and_whole(w: World) -> None:
    w.rest(w.event(w.random.choice(TYPES), age=40 * DAY))


def old_and_sent_late(w: World) -> None:
    """Written before all retentions, by choice sent much later: no purge explains its absence."""
    type_, group = some(w)
    event = w.event(type_, age=40 * DAY, settled_age=HOUR)
    w.say(event, group, V.MISSING_DOWNSTREAM)
    for other in event.groups:
        if other is not group:
            w.got(event, other, age=HOUR)
            w.say(event, other, V.MATCHED)


SCENARIOS: tuple[Scenario, ...] = (
    perhaps_purged,
    old_and_whole,
    old_and_sent_late,
)
