"""Reads outboxes for the comparison with topics: every selected row, with its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, Row

from . import incremental
from .driver_frames import union_of
from .jdbc import Databases
from .row_filters import EVERYTHING, MOST_LOOKUPS, Read, by_ids, inside_calendar, is_ahead, quoted

# Parts of a read are cut by `seq`. Topics do not depend on whether an open row is blocked.
_WRITTEN = """
    SELECT o.event_id, o.seq, o.source AS upstream, o.tx_kind AS kind, o.topic, o.key, o.event_type,
           o.causation_id, o.status AS upstream_status, o.attempts AS upstream_attempts,
           {created_at} AS created_at, {settled_at} AS published_at,
           {ahead} AS upstream_ahead,
           greatest(o.created_at, o.settled_at, o.lease_until) AS upstream_moved_at
    FROM {outbox} o WHERE o.source = {name} AND {condition}"""


def outboxes(databases: Databases) -> DataFrame:
    """Return the rows of all services' outboxes that the run's selection covers, and earlier ones.

    A selected event may follow one that was settled earlier and is not selected. So rows are read
    from the same time as records: see `topics.read_since`.
    """
    request = databases.request
    moved = request.selection.moved_since
    earlier = {name: since - 2 * request.margin for name, since in moved.items()}
    selection = replace(request.selection, moved_since=earlier)
    return _read(
        databases,
        {s.name: incremental.read_of_outbox(selection, s.name) for s in databases.services},
    )


def with_rows_of(databases: Databases, outbox: DataFrame, events: Iterable[Row]) -> DataFrame:
    """Add the rows of events with an `upstream` and an `event_id`, none of which is there yet."""
    ids: dict[str, set[str]] = defaultdict(set)
    for event in events:
        ids[event.upstream].add(event.event_id)
    if not ids:
        return outbox
    if sum(map(len, ids.values())) > MOST_LOOKUPS:
        return _read(databases, dict.fromkeys((s.name for s in databases.services), EVERYTHING))
    return outbox.unionByName(
        _read(databases, {s.name: by_ids(sorted(ids[s.name])) for s in databases.services})
    )


def _read(databases: Databases, reads: Mapping[str, Read]) -> DataFrame:
    return union_of(
        databases.frame(
            service,
            _WRITTEN.replace("{condition}", reads[service.name].condition),
            parts=reads[service.name].parts,
            name=quoted(service.name),
            created_at=inside_calendar("o.created_at"),
            settled_at=inside_calendar("o.settled_at"),
            ahead=is_ahead("o.created_at", "o.settled_at", margin=databases.request.margin),
        )
        for service in databases.services
    )
