"""Events for services that take no part in this: no group is to receive them, but they may fail.

A service lists their topics or their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock, window_of

from . import incremental
from .jdbc import Databases
from .moved_at import UPSTREAM_MOVED_AT
from .row_filters import LATEST, listed, literal_time, quoted

# A row that has not moved is neither claimed nor held back by another one: see
# `UPSTREAM_MOVED_AT`.
_COUNTED = """
    SELECT o.topic, CASE WHEN o.topic NOT IN ({others}) THEN o.event_type END AS event_type,
           o.status, {told} AS told, count(*) AS events FROM {outbox} o
    WHERE o.source = {name} AND (o.topic IN ({others}) OR o.event_type IN ({others}))
      AND {condition}
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
_OF_OPERATORS = "(o.settled_at IS NOT NULL AND o.status IN ('FAILED', 'UNRESOLVED'))"
_IS_LISTED = "o.last_error IS NOT NULL"


def waiting_for_others(databases: Databases, clocks: Mapping[str, Clock]) -> tuple[str, ...]:
    """Say in sentences which events for others wait for a person, or for a relay.

    No group is judged by them, so that no verdict names them.
    """
    return tuple(
        sentence
        for service in databases.services
        if service.others
        for sentence in (
            *_of_operators(databases, service),
            *_stuck(databases, service, clocks[service.name]),
        )
    )


def _of_operators(databases: Databases, service: ServiceDatabase) -> Iterator[str]:
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    condition = f"({read.condition} OR {incremental.OF_OPERATORS_IN_OUTBOX}) AND {_OF_OPERATORS}"
    for events, is_listed in _counted(databases, service, condition, _IS_LISTED):
        todo = (
            "see `shieldtx dead list` of that service"
            if is_listed
            else "they have no last_error, by which `shieldtx dead list` finds them: set it, or "
            "settle them"
        )
        yield f"{events} and wait for a person: {todo}"


def _stuck(databases: Databases, service: ServiceDatabase, clock: Clock) -> Iterator[str]:
    watermark = window_of([clock], margin=databases.request.margin).watermark
    if watermark is None:
        return
    condition = _has_not_moved_since(watermark, databases.lately)
    for events, _ in _counted(databases, service, condition, "true"):
        yield (
            f"{events}, and nothing has moved them since before "
            f"{watermark:%Y-%m-%d %H:%M:%S%z}: see whether the relays of that service run and keep "
            "up"
        )


def _has_not_moved_since(watermark: datetime, lately: datetime) -> str:
    is_open = " OR ".join(incremental.OPEN_IN_OUTBOX)
    moved = UPSTREAM_MOVED_AT.replace("{latest}", LATEST).replace("{lately}", literal_time(lately))
    return f"({is_open}) AND {moved} < {literal_time(watermark)}"


def _counted(
    databases: Databases, service: ServiceDatabase, condition: str, told: str
) -> Iterator[tuple[str, bool]]:
    """Say how many events for others are in which status, each with what is `told` of them."""
    rows = databases.rows(
        service,
        _COUNTED.replace("{condition}", condition).replace("{told}", told),
        name=quoted(service.name),
        others=listed(service.others),
    )
    for topic, event_type, status, is_so, events in rows:
        what = (
            f"{topic}, a topic for others,"
            if event_type is None
            else f"{topic} with the type {event_type}, a type for others,"
        )
        yield f"{events:,} events of {service.name} on {what} are {status}", is_so
