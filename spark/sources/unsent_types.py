"""Types of events that have not been sent so far: no group can lack any of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from shieldtx.reconcile.expectations import Sent
from shieldtx.reconcile.request import ServiceDatabase

from . import incremental
from .jdbc import Databases
from .moved_at import UPSTREAM_MOVED_AT
from .row_filters import LATEST, is_ahead, literal_time, quoted, rows_of_texts

# Discarded: a delayed event that was cancelled, a half message that was rolled back, or an event
# that an operator discarded.
_TYPES: Final = """
    SELECT DISTINCT o.topic, o.event_type FROM {outbox} o
    WHERE o.source = {name} AND o.tx_kind = 'COMMIT' AND (o.topic, o.event_type) IN ({types})
      AND {condition} AND CASE WHEN o.settled_at IS NULL THEN {moved} < {lately} OR {ahead}
                               ELSE o.status <> 'DISCARDED' END"""


def unsent_types(databases: Databases, types: Iterable[Sent]) -> frozenset[Sent]:
    """Return the types of which no event in the selection was sent, or should have been.

    Their events are due later, are in flight, or were discarded. An event that failed, or that has
    not changed since it was due, should have been sent.
    """
    by_service: dict[str, set[Sent]] = defaultdict(set)
    for each in types:
        by_service[each.upstream].add(each)
    return frozenset(
        each
        for service in databases.services
        if (asked := by_service.get(service.name))
        for each in asked - _sent(databases, service, asked)
    )


def _sent(databases: Databases, service: ServiceDatabase, types: set[Sent]) -> set[Sent]:
    """Return the types of which an event was sent, or should have been."""
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    statement = _TYPES.replace("{condition}", read.condition).replace("{moved}", UPSTREAM_MOVED_AT)
    by_type = {(each.topic, each.event_type): each for each in types}
    rows = databases.rows(
        service,
        statement,
        name=quoted(service.name),
        types=rows_of_texts(by_type),
        latest=LATEST,
        lately=literal_time(databases.lately),
        # The clock was ahead, so whether the event is due is unknown.
        ahead=is_ahead("o.created_at", margin=databases.request.margin),
    )
    return {by_type[row.topic, row.event_type] for row in rows}
