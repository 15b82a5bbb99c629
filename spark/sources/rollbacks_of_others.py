"""Rollbacks of events of services that take no part in the run: they may fail without a verdict.

The service that wrote such an event keeps its effects as long as the rollback is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Row

from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock

from .jdbc import Databases
from .row_filters import listed, quoted
from .waiting_rows import OUTBOX, Waiting, waiting_rows

_COUNTED = """
    SELECT o.causation_source AS writer, o.status, {is_listed} AS is_listed, count(*) AS rollbacks
    FROM {outbox} o
    WHERE o.source = {name} AND o.tx_kind = 'ROLLBACK'
      AND (o.causation_source IS NULL OR o.causation_source NOT IN ({names})) AND {condition}
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


def unsent_rollbacks_of_others(databases: Databases, clocks: Mapping[str, Clock]) -> Iterator[str]:
    """Yield sentences for rollbacks of others' events that wait for an operator, or for a relay."""
    names = listed([each.name for each in databases.services])
    return waiting_rows(databases, clocks, lambda service: _rollbacks(service, names))


def _rollbacks(service: ServiceDatabase, names: str) -> Waiting:
    def described(row: Row[*tuple[Any, ...]]) -> str:
        whose = (
            "a service that they do not name"
            if row.writer is None
            else f"{row.writer}, which is none of these services,"
        )
        return f"{row.rollbacks:,} rollbacks by {service.name} of events of {whose}"

    return Waiting(
        side=OUTBOX,
        counted=_COUNTED,
        values={"name": quoted(service.name), "names": names},
        statuses=("FAILED",),
        described=described,
        consequence=", so that their events are not compensated",
    )
