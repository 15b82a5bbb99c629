"""Scenarios that are unusual but not a mismatch."""

from __future__ import annotations

from tests.spark.scenarios.vocabulary import HOUR, I, Scenario, V, effect
from tests.spark.world import FOR_OTHERS, GROUPS, Planted, World


def twins(w: World) -> None:
    """Two services happen to use one id: a rollback of one event does not concern the other."""
    first = w.event("orders.placed")
    second = w.event("stock.reserved", event_id=first.id)
    for event, verdict in (
        (first, V.NEITHER_EFFECT_NOR_COMPENSATION),
        (second, V.REFUSED),
    ):
        notify = next(group for group in event.groups if group.name == "notify")
        w.got(event, notify, I.MAX_RECONSUMED)
        w.report(event, notify, verdict)
        w.rest(event, notify)
    w.returned(w.rollback(second, "mail"))


def for_others(w: World) -> None:
    w.event("orders.placed", topic=FOR_OTHERS, event_type="shipping.asked")


def from_a_foreign_service(w: World) -> None:
    event = effect(w)
    foreign = Planted(
        id=w.new_id(HOUR),
        upstream="legacy",
        type="legacy.moved",
        key=event.key,
        payload="{}",
        written_age=HOUR,
    )
    w.got(foreign, event.groups[0])


def received_unasked(w: World) -> None:
    """A group received an unexpected event: the event is compared, and others are not missed."""
    if w.declared:
        event = w.event("orders.paid")
        w.rest(event)
        unasked = next(group for group in GROUPS if group.name == "notify")
        w.got(event, unasked)
        w.report(event, unasked, V.MATCHED)


SCENARIOS: tuple[Scenario, ...] = (
    twins,
    for_others,
    from_a_foreign_service,
    received_unasked,
)
