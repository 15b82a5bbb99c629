"""Scenarios of events that are open, parked, or never sent."""

from __future__ import annotations

from shieldtx.reconcile.verdicts import Verdict
from tests.spark.planting import ago
from tests.spark.scenarios.vocabulary import HOUR, OPEN, TYPES, I, O, Scenario, V, some
from tests.spark.world import World


def stuck_upstream(w: World) -> None:
    status = w.random.choice(OPEN)
    leased = {"lease_until": ago(w.now, HOUR)} if status is O.PROCESSING else {}
    event = w.event(w.random.choice(TYPES), status, due_age=HOUR, **leased)
    w.rest(event, verdict=V.STUCK)


def arrived_before_it_was_settled(w: World) -> None:
    """A relay died between acknowledgement and settlement: all groups have the event."""
    status = w.random.choice((O.INIT, O.PROCESSING))
    leased = {"lease_until": ago(w.now, HOUR)} if status is O.PROCESSING else {}
    event = w.event(w.random.choice(TYPES), status, due_age=HOUR, **leased)
    for group in event.groups:
        w.got(event, group)
    w.rest(event, verdict=V.STUCK)


def stuck_downstream(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_)
    status = w.random.choice((I.PROCESSING, I.INIT))
    leased = {"lease_until": ago(w.now, 12)} if status is I.PROCESSING else {}
    w.got(event, group, status, **leased)
    w.report(event, group, V.STUCK)
    w.rest(event, group)


def stuck_behind_a_held_key(w: World) -> None:
    _blocked(w, due_age=20, verdict=V.STUCK)


def waiting_behind_a_held_key(w: World) -> None:
    _blocked(w, due_age=-30, verdict=V.IN_FLIGHT)


def _blocked(w: World, *, due_age: float, verdict: Verdict) -> None:
    """Plant two rows of a key: the first waits for its retry, and the second for the first."""
    type_ = w.random.choice(TYPES)
    key = w.new_key()
    holder = w.event(type_, O.INIT, due_age=due_age, waiting=True, holds_key=True, key=key)
    behind = w.event(type_, O.INIT, key=key)
    for event in (holder, behind):
        w.rest(event, verdict=verdict)
    type_, group = some(w)
    key = w.new_key()
    for number in range(2):
        event = w.event(type_, key=key)
        status = I.INIT if number else I.PROCESSING
        w.got(event, group, status, key=key, **({} if number else {"due_age": due_age}))
        w.report(event, group, verdict)
        w.rest(event, group)


def parked(w: World) -> None:
    status = w.random.choice((O.FAILED, O.UNRESOLVED))
    w.rest(w.event(w.random.choice(TYPES), status), verdict=V.PARKED)


def parked_by_a_group(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_)
    w.got(event, group, I.DEAD)
    w.report(event, group, V.PARKED)
    w.rest(event, group)


def discarded(w: World) -> None:
    w.rest(w.event(w.random.choice(TYPES), O.DISCARDED), verdict=V.NEVER_SENT)


SCENARIOS: tuple[Scenario, ...] = (
    stuck_upstream,
    arrived_before_it_was_settled,
    stuck_downstream,
    stuck_behind_a_held_key,
    waiting_behind_a_held_key,
    parked,
    parked_by_a_group,
    discarded,
)
