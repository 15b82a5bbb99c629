"""Receipts by which no group is judged: from services that take no part in the run.

Includes events that such a service wrote, and rollbacks that it wrote or whose events it wrote. A
failed compensation waits for an operator of the service that received it, whichever service wrote
the event or the rollback.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import Row

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock

from .jdbc import Databases
from .outbox_inbox import IS_OF_THESE_DOWNSTREAM
from .row_filters import array_of, listed
from .waiting_rows import INBOX, Waiting, waiting_rows

# Rows from `other_sources` are left out. A rollback is kept if one of these services sent it, or
# wrote its event: these services must know its outcome.
_COUNTED = """
    SELECT i.consumer_group, i.source, i.tx_kind AS kind,
           CASE WHEN i.tx_kind = 'ROLLBACK' THEN i.causation_source END AS writer,
           i.status, {is_listed} AS is_listed, count(*) AS received
    FROM {inbox} i
    WHERE ({of_these}) IS NOT TRUE AND {condition}
      AND NOT (i.source = ANY ({left_out}) AND (
          i.tx_kind <> 'ROLLBACK' OR (i.causation_source IN ({names})) IS NOT TRUE))
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6"""


def waiting_from_others(databases: Databases, clocks: Mapping[str, Clock]) -> Iterator[str]:
    """Yield sentences for inbox rows that wait for an operator, or for a consumer."""
    names = frozenset(each.name for each in databases.services)
    return waiting_rows(databases, clocks, lambda service: _received_by(service, names))


def _received_by(service: ServiceDatabase, names: Collection[str]) -> Waiting:
    def named(source: str | None) -> str:
        if source is None:
            return "a service that they do not name"
        return source if source in names else f"{source}, which is none of these services,"

    def described(row: Row[*tuple[Any, ...]]) -> str:
        what = f"events of {named(row.source)}"
        if row.kind == TxKind.ROLLBACK:
            what = f"rollbacks by {named(row.source)} of events of {named(row.writer)}"
        return f"{row.received:,} {what} in group {row.consumer_group} of {service.name}"

    return Waiting(
        side=INBOX,
        counted=_COUNTED,
        values={
            "of_these": IS_OF_THESE_DOWNSTREAM.format(names=listed(sorted(names))),
            "names": listed(sorted(names)),
            "left_out": array_of(service.other_sources),
        },
        statuses=("DEAD",),
        described=described,
        consequence=", so that their events are not compensated",
    )
