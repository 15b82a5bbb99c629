"""The other side of the rows that are read: rows outside the plan are looked up by id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from shieldtx.reconcile.request import ServiceDatabase

from ..sources import outbox_inbox
from ..sources.driver_frames import union_of
from ..sources.jdbc import Databases
from ..sources.row_filters import EVERYTHING, MOST_LOOKUPS, NOTHING, Read, by_ids
from .transforms import alone

_Source = Callable[[Databases, ServiceDatabase, Read], DataFrame]


def rows_of(databases: Databases, source: _Source, reads: Mapping[str, Read]) -> DataFrame:
    """Return the rows of all services; none for a service without an entry in `reads`."""
    return union_of(
        source(databases, service, reads.get(service.name) or NOTHING)
        for service in databases.services
    )


@dataclass(frozen=True, slots=True)
class Partners:
    """The ids of events by which rows are looked up, by service; None: all rows are read."""

    outboxes: Mapping[str, Collection[str]] | None
    inboxes: Mapping[str, Collection[str]] | None


def partners_of(databases: Databases, pairs: DataFrame) -> Partners | None:
    """Return the rows that the plan has left out and that belong to unmatched rows; None if none.

    An event that is looked up for one group is judged for all groups that should have it. So inbox
    rows of such events are looked up too, in all services.
    """
    found = alone(pairs).limit(MOST_LOOKUPS + 1).collect()
    if not found:
        return None
    if len(found) > MOST_LOOKUPS:
        return Partners(None, None)
    outboxes: dict[str, set[str]] = defaultdict(set)
    inboxes: dict[str, set[str]] = defaultdict(set)
    for row in found:
        if row.missing == "upstream":
            outboxes[row.service].add(row.event_id)
            for service in databases.services:
                inboxes[service.name].add(row.event_id)
        else:
            inboxes[row.service].add(row.event_id)
    return Partners(outboxes, inboxes)


def _looked_up(
    databases: Databases, source: _Source, ids: Mapping[str, Collection[str]] | None
) -> DataFrame:
    """Return rows by the ids of their events, by service; None: all rows."""
    if ids is None:
        every = {service.name: EVERYTHING for service in databases.services}
        return rows_of(databases, source, every)
    return rows_of(databases, source, {name: by_ids(sorted(some)) for name, some in ids.items()})


def with_events(
    databases: Databases, sent: DataFrame, ids: Mapping[str, Collection[str]] | None
) -> tuple[DataFrame, DataFrame]:
    """Return outbox rows extended by the looked-up rows, and the added rows alone."""
    more = _looked_up(databases, outbox_inbox.outbox, ids)
    return _with_more(sent, more, by=("upstream", "event_id"))


def with_arrivals(
    databases: Databases, received: DataFrame, ids: Mapping[str, Collection[str]] | None
) -> tuple[DataFrame, DataFrame]:
    """Return inbox rows extended by the looked-up rows, and the added rows alone."""
    more = _looked_up(databases, outbox_inbox.inbox, ids)
    return _with_more(received, more, by=("downstream", "consumer_group", "upstream", "event_id"))


def _with_more(
    rows: DataFrame, more: DataFrame, *, by: Sequence[str]
) -> tuple[DataFrame, DataFrame]:
    # An alias of its own: Spark flattens a union with an added union, does not recognize the
    # persisted part, and reads all rows once more.
    kept = rows.alias("kept")
    # Persisted as well: the types of the added rows are read before the rows.
    added = more.join(kept.select(*by), on=list(by), how="left_anti").persist()
    return kept.unionByName(added), added
