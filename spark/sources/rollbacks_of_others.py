"""Rollbacks of events of services that take no part in this: they may fail, and no group is judged.

The service that wrote such an event keeps its part for as long as the rollback is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock, window_of

from . import incremental
from .jdbc import Databases
from .moved_at import UPSTREAM_MOVED_AT
from .row_filters import LATEST, listed, literal_time, quoted

_COUNTED = """
    SELECT o.causation_source AS writer, o.status, {told} AS told, count(*) AS rollbacks
    FROM {outbox} o
    WHERE o.source = {name} AND o.tx_kind = 'ROLLBACK'
      AND (o.causation_source IS NULL OR o.causation_source NOT IN ({names})) AND {condition}
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
_FAILED = "(o.settled_at IS NOT NULL AND o.status = 'FAILED')"
_IS_LISTED = "o.last_error IS NOT NULL"


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
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    condition = f"({read.condition} OR {incremental.OF_OPERATORS_IN_OUTBOX}) AND {_FAILED}"
    for writer, status, is_listed, rollbacks in _counted(databases, service, condition, _IS_LISTED):
        todo = (
            "see `shieldtx dead list` of that service"
            if is_listed
            else "they have no last_error, by which `shieldtx dead list` finds them: set it, or "
            "settle them"
        )
        yield (
            f"{_named(rollbacks, service, writer)} are {status} and wait for an operator, so that "
            f"their events are not compensated: {todo}"
        )


def _stuck(databases: Databases, service: ServiceDatabase, clock: Clock) -> Iterator[str]:
    watermark = window_of([clock], margin=databases.request.margin).watermark
    if watermark is None:
        return
    is_open = " OR ".join(incremental.OPEN_IN_OUTBOX)
    lately = literal_time(databases.lately)
    moved = UPSTREAM_MOVED_AT.replace("{latest}", LATEST).replace("{lately}", lately)
    condition = f"({is_open}) AND {moved} < {literal_time(watermark)}"
    for writer, status, _, rollbacks in _counted(databases, service, condition, "true"):
        yield (
            f"{_named(rollbacks, service, writer)} are {status}, and nothing has moved them since "
            f"before {watermark:%Y-%m-%d %H:%M:%S%z}: see whether the relays of that service run "
            "and keep up"
        )


def _named(rollbacks: int, service: ServiceDatabase, writer: str | None) -> str:
    is_none = "a service that they do not name"
    whose = is_none if writer is None else f"{writer}, which is none of these services,"
    return f"{rollbacks:,} rollbacks by {service.name} of events of {whose}"


def _counted(
    databases: Databases, service: ServiceDatabase, condition: str, told: str
) -> Sequence[Row[*tuple[Any, ...]]]:
    return databases.rows(
        service,
        _COUNTED.replace("{condition}", condition).replace("{told}", told),
        name=quoted(service.name),
        names=listed([each.name for each in databases.services]),
    )
