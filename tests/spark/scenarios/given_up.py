"""Scenarios of events that a group gave up, and of their rollbacks."""

from __future__ import annotations

from typing import Any

from shieldtx.reconcile.verdicts import Verdict
from tests.spark.scenarios.vocabulary import I, O, Scenario, V, some
from tests.spark.world import GROUPS, UNDOES, Group, Planted, World

UNDOING = [group for group in GROUPS if (group.service, group.name) in UNDOES]


def refused(
    w: World,
    of: tuple[str, Group] | None = None,
    *,
    verdict: Verdict = V.REFUSED,
    **attempt: Any,
) -> tuple[Planted, Group]:
    """Let a group give an event up; the caller notes the verdict on the rollback."""
    type_, group = of or some(w)
    event = w.event(type_)
    w.got(event, group, I.MAX_RECONSUMED, **attempt)
    w.report(event, group, verdict)
    w.rest(event, group)
    return event, group


def compensated(w: World, of: tuple[str, Group] | None = None) -> None:
    event, group = refused(w, of)
    w.returned(w.rollback(event, group.service))


def refused_by_all_groups_of_a_service(w: World) -> None:
    """Each group writes its rollback, and one compensation answers all of them."""
    event = w.event("orders.placed")
    both = [group for group in event.groups if group.service == "stock"]
    w.rest(event, *both)
    for number, group in enumerate(both):
        w.got(event, group, I.MAX_RECONSUMED)
        w.report(event, group, V.REFUSED)
        w.returned(w.rollback(event, "stock"), compensated=number == 0)


def chain_that_goes_back(w: World) -> None:
    """The middle service compensates its own event, so it takes back the one before: an effect."""
    first = w.event("orders.placed")
    w.rest(first)
    second = w.event("stock.reserved", age=first.written_age, because=first)
    group = w.random.choice(second.groups)
    w.got(second, group, I.MAX_RECONSUMED)
    w.report(second, group, V.REFUSED)
    w.rest(second, group)
    w.returned(w.rollback(second, "mail"))
    w.returned(w.rollback(first, "stock"))


def overtaken_by_its_rollback(w: World) -> None:
    """A group receives the rollback first, keeps a tombstone and undoes nothing."""
    event = w.event("orders.placed")
    reserve, _, notify = event.groups
    w.got(event, reserve, I.MAX_RECONSUMED)
    w.report(event, reserve, V.REFUSED)
    rollback = w.rollback(event, "stock")
    w.got(event, notify, I.FENCED, payload="null", causation_id=rollback.id)
    w.report(event, notify, V.REFUSED)
    w.returned(rollback)
    w.rest(event, reserve, notify)


def nothing_taken_back(w: World) -> None:
    refused(w, verdict=V.NEITHER_EFFECT_NOR_COMPENSATION)


def attempts_beyond_the_limit(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_)
    w.got(event, group, I.MAX_RECONSUMED, attempts=group.limit + w.random.randint(1, 4))
    w.report(event, group, V.ATTEMPTS_DIFFER)
    w.rest(event, group)
    w.returned(w.rollback(event, group.service))


def given_up_at_once(w: World) -> None:
    event, group = refused(w, attempts=1)
    w.returned(w.rollback(event, group.service))


def uncalled_rollback(w: World) -> None:
    """A service takes an event back although all of its groups have had their effect."""
    type_, group = some(w)
    event = w.event(type_)
    at_fault = [other for other in event.groups if other.service == group.service]
    for each in at_fault:
        w.got(event, each)
        # A group that compensates the event has no effect left.
        w.report(event, each, V.MATCHED if each in event.undoers else V.EFFECT_DESPITE_ROLLBACK)
    w.rest(event, *at_fault)
    w.returned(w.rollback(event, group.service))


def compensation_that_never_was(w: World) -> None:
    event, group = refused(w)
    w.returned(
        w.rollback(event, group.service, verdict=V.ROLLBACK_NOT_COMPENSATED), compensated=False
    )


def lost_rollback(w: World) -> None:
    event, group = refused(w)
    w.rollback(event, group.service, verdict=V.MISSING_DOWNSTREAM, arrives=False)


def lost_rollback_elsewhere(w: World) -> None:
    """The writer of the event compensates; a group of another service lacks the rollback."""
    event, rollback = _refused_beside_an_undoer(w)
    w.returned(rollback, elsewhere=False)
    for undoer in event.undoers:
        w.report(rollback, undoer, V.MISSING_DOWNSTREAM)


def effect_that_stays_elsewhere(w: World) -> None:
    """A group of another service settles the rollback, and its effect remains."""
    event, rollback = _refused_beside_an_undoer(w)
    w.returned(rollback, elsewhere=False)
    for undoer in event.undoers:
        w.undone(rollback, undoer, V.ROLLBACK_NOT_COMPENSATED, compensated_id=None)


def _refused_beside_an_undoer(w: World) -> tuple[Planted, Planted]:
    group = w.random.choice([g for g in GROUPS if "orders.placed" in g.types and g not in UNDOING])
    event, _ = refused(w, ("orders.placed", group))
    return event, w.rollback(event, group.service)


def rollback_that_was_not_sent(w: World) -> None:
    event, group = refused(w)
    status = w.random.choice((O.FAILED, O.INIT))
    verdict = V.PARKED if status is O.FAILED else V.STUCK
    w.rollback(event, group.service, status, verdict=verdict, arrives=False)


def dead_compensation(w: World) -> None:
    event, group = refused(w)
    w.returned(w.rollback(event, group.service, verdict=V.PARKED), I.DEAD, compensated=False)


def discarded_compensation(w: World) -> None:
    event, group = refused(w)
    rollback = w.rollback(event, group.service, verdict=V.DISCARDED)
    w.returned(rollback, I.DISCARDED, compensated=False)


def discarded_rollback(w: World) -> None:
    event, group = refused(w)
    w.rollback(event, group.service, O.DISCARDED, verdict=V.DISCARDED, arrives=False)


def open_compensation(w: World) -> None:
    event, group = refused(w)
    status = w.random.choice((I.PROCESSING, I.INIT))
    w.returned(w.rollback(event, group.service, verdict=V.STUCK), status, compensated=False)


def rollback_on_its_way(w: World) -> None:
    event, group = refused(w)
    w.rollback(event, group.service, verdict=V.IN_FLIGHT, arrives=False, settled_age=3)


def changed_reason(w: World) -> None:
    event, group = refused(w)
    rollback = w.rollback(event, group.service, verdict=V.PAYLOAD_DIFFERS)
    w.returned(rollback, payload=rollback.payload + " ")


SCENARIOS: tuple[Scenario, ...] = (
    compensated,
    refused_by_all_groups_of_a_service,
    chain_that_goes_back,
    overtaken_by_its_rollback,
    nothing_taken_back,
    attempts_beyond_the_limit,
    given_up_at_once,
    uncalled_rollback,
    compensation_that_never_was,
    lost_rollback,
    lost_rollback_elsewhere,
    effect_that_stays_elsewhere,
    rollback_that_was_not_sent,
    dead_compensation,
    discarded_compensation,
    discarded_rollback,
    open_compensation,
    rollback_on_its_way,
    changed_reason,
)
