"""Events for services outside the run: no group should receive them, but they may fail.

A service lists their topics or their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Row

from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock

from .jdbc import Databases
from .row_filters import array_of, quoted
from .waiting_rows import OUTBOX, Waiting, waiting_rows

_COUNTED = """
    SELECT o.topic, CASE WHEN NOT o.topic = ANY ({topics}) THEN o.event_type END AS event_type,
           o.status, {is_listed} AS is_listed, count(*) AS events FROM {outbox} o
    WHERE o.source = {name} AND (o.topic = ANY ({topics}) OR o.event_type = ANY ({types}))
      AND {condition}
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""


def waiting_for_others(databases: Databases, clocks: Mapping[str, Clock]) -> Iterator[str]:
    """Yield sentences for events for others that wait for an operator, or for a relay.

    No group is judged by these events, so no verdict covers them.
    """
    return waiting_rows(databases, clocks, _for_others)


def _for_others(service: ServiceDatabase) -> Waiting | None:
    if service.others == Others():
        return None

    def described(row: Row[*tuple[Any, ...]]) -> str:
        what = (
            f"{row.topic}, a topic for others,"
            if row.event_type is None
            else f"{row.topic} with the type {row.event_type}, a type for others,"
        )
        return f"{row.events:,} events of {service.name} on {what}"

    return Waiting(
        side=OUTBOX,
        counted=_COUNTED,
        values={
            "name": quoted(service.name),
            "topics": array_of(service.others.topics),
            "types": array_of(service.others.event_types),
        },
        statuses=("FAILED", "UNRESOLVED"),
        described=described,
    )
