"""Scenarios in which both sides have a row, and the rows contradict each other."""

from __future__ import annotations

from tests.spark.scenarios.vocabulary import HOUR, I, O, Scenario, V, some
from tests.spark.world import World

UNSENT_FOR_EVER = {O.FAILED: V.PARKED, O.UNRESOLVED: V.PARKED, O.DISCARDED: V.NEVER_SENT}


def changed_payload(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_, age=w.random.choice((1, HOUR)))
    w.got(event, group, payload=event.payload.replace("n", "m", 1))
    w.report(event, group, V.PAYLOAD_DIFFERS)
    w.rest(event, group)


def delivered_all_the_same(w: World) -> None:
    type_, group = some(w)
    status = w.random.choice((*UNSENT_FOR_EVER, O.HALF))
    event = w.event(type_, status)
    w.got(event, group, w.random.choice((I.PROCESSED, I.PROCESSING, I.MAX_RECONSUMED)))
    w.report(event, group, V.STATUS_DISAGREES)
    w.rest(event, group, verdict=UNSENT_FOR_EVER.get(status, V.STUCK))


def changed_envelope(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_, age=w.random.choice((1, HOUR)))
    name = w.random.choice(("key", "biz_key", "operation"))
    w.got(event, group, **{name: "DELETE" if name == "operation" else w.new_key()})
    w.report(event, group, V.ENVELOPE_DIFFERS)
    w.rest(event, group)


def tombstone_without_a_rollback(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_)
    w.got(event, group, I.FENCED, payload="null")
    w.report(event, group, V.STATUS_DISAGREES)
    w.rest(event, group)


SCENARIOS: tuple[Scenario, ...] = (
    changed_payload,
    changed_envelope,
    tombstone_without_a_rollback,
    delivered_all_the_same,
)
