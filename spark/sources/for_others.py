"""Events for services that take no part in this: no group is to receive them, but they may fail.

A service lists their topics or their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock

from .jdbc import Databases
from .row_filters import array_of, quoted
from .unsent import IS_LISTED, stuck, waits_for_operator, what_to_do

_COUNTED = """
    SELECT o.topic, CASE WHEN NOT o.topic = ANY ({topics}) THEN o.event_type END AS event_type,
           o.status, {is_listed} AS is_listed, count(*) AS events FROM {outbox} o
    WHERE o.source = {name} AND (o.topic = ANY ({topics}) OR o.event_type = ANY ({types}))
      AND {condition}
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""


def waiting_for_others(databases: Databases, clocks: Mapping[str, Clock]) -> tuple[str, ...]:
    """Say in sentences which events for others wait for a person, or for a relay.

    No group is judged by them, so that no verdict names them.
    """
    return tuple(
        sentence
        for service in databases.services
        if service.others != Others()
        for sentence in (
            *_of_operators(databases, service),
            *_stuck(databases, service, clocks[service.name]),
        )
    )


def _of_operators(databases: Databases, service: ServiceDatabase) -> Iterator[str]:
    condition = waits_for_operator(databases, service, "FAILED", "UNRESOLVED")
    for events, is_listed in _counted(databases, service, condition, IS_LISTED):
        yield f"{events} and wait for a person: {what_to_do(is_listed=is_listed)}"


def _stuck(databases: Databases, service: ServiceDatabase, clock: Clock) -> Iterator[str]:
    if (found := stuck(databases, clock)) is not None:
        condition, what = found
        for events, _ in _counted(databases, service, condition, "true"):
            yield f"{events}, {what}"


def _counted(
    databases: Databases, service: ServiceDatabase, condition: str, is_listed: str
) -> Iterator[tuple[str, bool]]:
    """Say how many events for others are in which status, and whether `dead list` has them."""
    rows = databases.rows(
        service,
        _COUNTED.replace("{condition}", condition).replace("{is_listed}", is_listed),
        name=quoted(service.name),
        topics=array_of(service.others.topics),
        types=array_of(service.others.event_types),
    )
    for topic, event_type, status, is_so, events in rows:
        what = (
            f"{topic}, a topic for others,"
            if event_type is None
            else f"{topic} with the type {event_type}, a type for others,"
        )
        yield f"{events:,} events of {service.name} on {what} are {status}", is_so
