"""Scenarios around the watermark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.spark.planting import ago
from tests.spark.scenarios.one_sided import ghost_of_some
from tests.spark.scenarios.vocabulary import HOUR, TYPES, I, O, Scenario, V, some
from tests.spark.world import DAY, World

_MICROSECOND = timedelta(microseconds=1)


def in_flight_upstream(w: World) -> None:
    young: tuple[dict[str, Any], ...] = (
        {"age": HOUR, "settled_age": 5},
        {"age": 1, "status": O.INIT},
        {"age": DAY, "status": O.INIT, "due_age": -DAY, "waiting": True},
        {"age": HOUR, "status": O.PROCESSING, "lease_until": ago(w.now, -1)},
        {"age": HOUR, "status": O.HALF, "due_age": 2},
    )
    w.rest(w.event(w.random.choice(TYPES), **w.random.choice(young)), verdict=V.IN_FLIGHT)


def in_flight_downstream(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_, age=HOUR)
    young: tuple[dict[str, Any], ...] = (
        {"status": I.PROCESSING, "due_age": -90},
        {"status": I.PROCESSING, "lease_until": ago(w.now, -1)},
        {"status": I.INIT, "age": 2},
        {"status": I.MAX_RECONSUMED, "settled_age": 4},
    )
    w.got(event, group, **w.random.choice(young))
    w.report(event, group, V.IN_FLIGHT)
    w.rest(event, group)


def young_ghost(w: World) -> None:
    ghost_of_some(w, V.IN_FLIGHT, I.PROCESSED, age=4)


def young_and_whole(w: World) -> None:
    w.rest(w.event(w.random.choice(TYPES), age=0.5))


def on_the_watermarks_edge(w: World) -> None:
    """Moved at the watermark: in flight; a microsecond before: judged."""
    for before, verdict in ((False, V.IN_FLIGHT), (True, V.MISSING_DOWNSTREAM)):
        type_, group = some(w)
        edge = w.watermark(type_.partition(".")[0], group.service) - _MICROSECOND * before
        event = w.event(type_, age=2 * HOUR, settled_at=edge)
        w.report(event, group, verdict)
        w.rest(event, group)
    for before, verdict in ((False, V.IN_FLIGHT), (True, V.STUCK)):
        type_, group = some(w)
        edge = w.watermark(type_.partition(".")[0], group.service) - _MICROSECOND * before
        event = w.event(type_, age=2 * HOUR)
        w.got(event, group, I.PROCESSING, lease_until=edge)
        w.report(event, group, verdict)
        w.rest(event, group)


SCENARIOS: tuple[Scenario, ...] = (
    in_flight_upstream,
    in_flight_downstream,
    young_ghost,
    young_and_whole,
    on_the_watermarks_edge,
)
