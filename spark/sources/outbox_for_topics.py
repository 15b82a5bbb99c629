"""Reads outboxes to lay them beside the topics: every row that a run covers, with its key."""

from __future__ import annotations

from pyspark.sql import DataFrame

from . import incremental
from .driver_frames import union_of
from .jdbc import Databases
from .row_filters import quoted

# Parts of a read are cut by `seq`. Whether an open row is held back is nothing to a topic.
_WRITTEN = """
    SELECT o.event_id, o.seq, o.source AS upstream, o.tx_kind AS kind, o.topic, o.key, o.event_type,
           o.causation_id, o.status AS upstream_status, o.attempts AS upstream_attempts,
           o.created_at, o.settled_at AS published_at,
           greatest(o.created_at, o.settled_at, o.lease_until) AS upstream_moved_at
    FROM {outbox} o WHERE o.source = {name} AND {condition}"""


def outboxes(databases: Databases) -> DataFrame:
    """Read the rows of all services' outboxes that the run's selection covers."""
    selection = databases.request.selection
    reads = {s.name: incremental.read_of_outbox(selection, s.name) for s in databases.services}
    return union_of(
        databases.frame(
            service,
            _WRITTEN.replace("{condition}", reads[service.name].condition),
            parts=reads[service.name].parts,
            name=quoted(service.name),
        )
        for service in databases.services
    )
