"""Rollbacks of events of services that take no part in this: they may fail, and no group is judged.

The service that wrote such an event keeps its part for as long as the rollback is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock

from .jdbc import Databases
from .row_filters import listed, quoted
from .unsent import IS_LISTED, stuck, waits_for_operator, what_to_do

_COUNTED = """
    SELECT o.causation_source AS writer, o.status, {is_listed} AS is_listed, count(*) AS rollbacks
    FROM {outbox} o
    WHERE o.source = {name} AND o.tx_kind = 'ROLLBACK'
      AND (o.causation_source IS NULL OR o.causation_source NOT IN ({names})) AND {condition}
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


def unsent_rollbacks_of_others(
    databases: Databases, clocks: Mapping[str, Clock]
) -> tuple[str, ...]:
    """Say in sentences which rollbacks of others' events wait for an operator, or for a relay."""
    return tuple(
        sentence
        for service in databases.services
        for sentence in (
            *_failed(databases, service),
            *_stuck(databases, service, clocks[service.name]),
        )
    )


def _failed(databases: Databases, service: ServiceDatabase) -> Iterator[str]:
    condition = waits_for_operator(databases, service, "FAILED")
    for writer, status, is_listed, rollbacks in _counted(databases, service, condition, IS_LISTED):
        yield (
            f"{_named(rollbacks, service, writer)} are {status} and wait for an operator, so that "
            f"their events are not compensated: {what_to_do(is_listed=is_listed)}"
        )


def _stuck(databases: Databases, service: ServiceDatabase, clock: Clock) -> Iterator[str]:
    if (found := stuck(databases, clock)) is not None:
        condition, what = found
        for writer, status, _, rollbacks in _counted(databases, service, condition, "true"):
            yield f"{_named(rollbacks, service, writer)} are {status}, {what}"


def _named(rollbacks: int, service: ServiceDatabase, writer: str | None) -> str:
    is_none = "a service that they do not name"
    whose = is_none if writer is None else f"{writer}, which is none of these services,"
    return f"{rollbacks:,} rollbacks by {service.name} of events of {whose}"


def _counted(
    databases: Databases, service: ServiceDatabase, condition: str, is_listed: str
) -> Sequence[Row[*tuple[Any, ...]]]:
    return databases.rows(
        service,
        _COUNTED.replace("{condition}", condition).replace("{is_listed}", is_listed),
        name=quoted(service.name),
        names=listed([each.name for each in databases.services]),
    )
