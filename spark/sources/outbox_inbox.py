"""The rows and the columns of outboxes and inboxes that are read: never a payload."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Received, Sent
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Memory

from .jdbc import Databases
from .moved_at import DOWNSTREAM_MOVED_AT, UPSTREAM_MOVED_AT
from .row_digests import envelope_digest, payload_digest
from .row_filters import (
    EVERYTHING,
    LATEST,
    Read,
    inside_calendar,
    is_ahead,
    listed,
    literal_time,
    quoted,
)

IS_ODD_UPSTREAM = """(
    o.tx_kind = 'ROLLBACK' OR o.status <> 'PROCESSED' OR o.event_id IN (
        SELECT r.causation_id FROM {inbox} r
        WHERE r.tx_kind = 'ROLLBACK' AND r.causation_source = {name}
          AND r.causation_id IS NOT NULL))"""
"""Whether an outbox row may be anything but published and never taken back."""

IS_ODD_DOWNSTREAM = """(
    i.tx_kind = 'ROLLBACK' OR i.status <> 'PROCESSED' OR (i.source, i.event_id) IN (
        SELECT r.causation_source, r.causation_id FROM {outbox} r
        WHERE r.tx_kind = 'ROLLBACK' AND r.causation_source IS NOT NULL
          AND r.causation_id IS NOT NULL)
    OR (i.consumer_group, i.event_id) IN (
        SELECT r.consumer_group, r.compensated_id FROM {inbox} r
        WHERE r.compensated_id IS NOT NULL))"""
"""Whether an inbox row may be anything but an effect that was never taken back."""

_CAME_LATE = """
    OR i.settled_at >= {since}
       AND i.event_time <= i.received_at - interval '{seconds} seconds'"""

IS_OF_THESE_DOWNSTREAM = (
    "i.source IN ({names}) AND (i.tx_kind <> 'ROLLBACK' OR i.causation_source IN ({names}))"
)
"""Whether an inbox row, and the event that it takes back, come from these services: such rows are
judged."""

# Unlisted: a row that waits for an operator and has no error, so the index of such rows lacks it.
# Due: a settled row has kept how it waited, and when a chosen delay ended.
_OUTBOX = """
    SELECT o.event_id, o.seq, o.source AS upstream, o.tx_kind AS kind, o.causation_source,
           o.causation_id, o.topic, o.event_type, o.status AS upstream_status,
           o.attempts AS upstream_attempts, {created_at} AS created_at,
           {settled_at} AS published_at, o.unconfirmed AS upstream_unconfirmed,
           CASE WHEN o.waiting AND NOT o.holds_key THEN {due_at} ELSE {created_at} END
               AS upstream_due_at,
           {payload_digest} AS upstream_digest, {envelope_digest} AS upstream_envelope,
           {bucket} AS bucket, {odd} AS upstream_odd,
           (o.settled_at IS NOT NULL AND o.last_error IS NULL
            AND o.status IN ('FAILED', 'UNRESOLVED')) AS upstream_unlisted,
           {ahead} AS upstream_ahead,
           {moved} AS upstream_moved_at
    FROM {outbox} o WHERE o.source = {name} AND {condition}"""
_INBOX = """
    SELECT i.event_id, i.seq, i.source AS upstream, i.tx_kind AS kind, i.causation_source,
           i.causation_id, i.topic, i.event_type, i.consumer_group, i.status AS downstream_status,
           i.attempts, {event_time} AS event_time, {received_at} AS received_at,
           {settled_at} AS settled_at,
           CASE WHEN i.status <> 'FENCED' THEN {payload_digest} END AS downstream_digest,
           CASE WHEN i.status <> 'FENCED' THEN {envelope_digest} END AS downstream_envelope,
           CASE WHEN i.status = 'FENCED' THEN EXISTS (
               SELECT 1 FROM {inbox} r
               WHERE r.tx_kind = 'ROLLBACK' AND r.consumer_group = i.consumer_group
                 AND r.causation_id = i.event_id
                 AND coalesce(r.causation_source, i.source) = i.source)
           END AS downstream_overtaken,
           CASE WHEN i.tx_kind = 'ROLLBACK' AND i.status = 'PROCESSED' THEN
               CASE WHEN i.causation_source = {name} THEN true ELSE (
                   SELECT bool_or(e.status = 'PROCESSED') FROM {inbox} e
                   WHERE e.consumer_group = i.consumer_group AND e.source = i.causation_source
                     AND e.event_id = i.causation_id AND e.tx_kind = 'COMMIT')
               END
           END AS downstream_owes,
           {bucket} AS bucket, {odd} AS downstream_odd,
           (i.settled_at IS NOT NULL AND i.last_error IS NULL
            AND i.status = 'DEAD') AS downstream_unlisted,
           {ahead} AS downstream_ahead,
           {moved} AS downstream_moved_at
    FROM {inbox} i WHERE {of_these} AND {condition}"""

_TYPES_SENT = """
    SELECT DISTINCT o.tx_kind AS kind, o.topic, o.event_type,
           CASE WHEN o.tx_kind = 'ROLLBACK' THEN o.causation_source END AS causation_source
    FROM {outbox} o WHERE o.source = {name}"""
_TYPES_RECEIVED = """
    SELECT DISTINCT i.source AS upstream, i.tx_kind AS kind, i.consumer_group, i.topic,
           i.event_type,
           CASE WHEN i.tx_kind = 'ROLLBACK' THEN i.causation_source END AS causation_source
    FROM {inbox} i WHERE i.tx_kind IN ({kinds})"""

# A rollback has a cause in two cases: a group of the service gave its event up, or the service has
# compensated an event that it wrote because of this one.
_ROLLBACKS = """
    SELECT r.causation_source AS upstream, r.causation_id AS event_id,
           max(r.created_at) AS answered_at, bool_or({ahead}) AS answer_ahead,
           bool_or(
               EXISTS (
                   SELECT 1 FROM {inbox} i
                   WHERE i.event_id = r.causation_id AND i.source = r.causation_source
                     AND i.status = 'MAX_RECONSUMED')
               OR EXISTS (
                   SELECT 1 FROM {inbox} i JOIN {outbox} w ON w.event_id = i.compensated_id
                   WHERE i.compensated_id IS NOT NULL AND w.causation_id = r.causation_id
                     AND w.causation_source = r.causation_source)) AS entitled
    FROM {outbox} r WHERE r.tx_kind = 'ROLLBACK'
    GROUP BY 1, 2"""
_COMPENSATIONS = """
    SELECT i.consumer_group, i.compensated_id AS causation_id, max(i.settled_at) AS answered_at
    FROM {inbox} i WHERE i.compensated_id IS NOT NULL
    GROUP BY 1, 2"""


def outbox(databases: Databases, service: ServiceDatabase, read: Read = EVERYTHING) -> DataFrame:
    """Return rows of an outbox."""
    return databases.frame(
        service,
        _OUTBOX.replace("{odd}", IS_ODD_UPSTREAM)
        .replace("{moved}", UPSTREAM_MOVED_AT)
        .replace("{condition}", read.condition),
        parts=read.parts,
        bucket=read.bucket.format(row="o"),
        **_digests(databases, "o"),
        **_times("o", "created_at", "settled_at", "due_at"),
        ahead=_ahead(databases, "o.created_at", "o.settled_at"),
        lately=literal_time(databases.lately),
        name=quoted(service.name),
    )


def inbox(databases: Databases, service: ServiceDatabase, read: Read = EVERYTHING) -> DataFrame:
    """Return the rows of an inbox that came from one of the services.

    Of rollbacks, only those that take back an event of one of the services.
    """
    frame = databases.frame(
        service,
        _INBOX.replace("{odd}", is_odd_downstream(databases.memories.get(service.name)))
        .replace("{moved}", DOWNSTREAM_MOVED_AT)
        .replace("{of_these}", IS_OF_THESE_DOWNSTREAM)
        .replace("{condition}", read.condition),
        parts=read.parts,
        bucket=read.bucket.format(row="i"),
        **_digests(databases, "i"),
        **_times("i", "event_time", "received_at", "settled_at"),
        ahead=_ahead(databases, "i.received_at", "i.settled_at"),
        lately=literal_time(databases.lately),
        name=quoted(service.name),
        names=listed(each.name for each in databases.services),
    )
    return frame.withColumn("downstream", F.lit(service.name))


def is_odd_downstream(memory: Memory | None) -> str:
    """Return an SQL condition for odd rows, also because the group may have had the event before.

    An event that came long after it was written was delayed, or was sent when its group may have
    purged an earlier row of it. `memory` is that of the service; None: it purges nothing.
    """
    if memory is None:
        return IS_ODD_DOWNSTREAM
    came_late = _CAME_LATE.format(
        since=literal_time(memory.since), seconds=memory.period / timedelta(seconds=1)
    )
    return f"({IS_ODD_DOWNSTREAM}{came_late})"


def types_sent(databases: Databases, service: ServiceDatabase) -> list[Sent]:
    """Return the types of the events in an outbox."""
    rows = databases.rows(service, _TYPES_SENT, name=quoted(service.name))
    return [_sent(row, service.name) for row in rows]


def types_received(
    databases: Databases, service: ServiceDatabase, kinds: Collection[TxKind] = tuple(TxKind)
) -> list[Received]:
    """Return the receipts of groups, by type and for some kinds, from the inbox."""
    if not kinds:
        return []
    rows = databases.rows(service, _TYPES_RECEIVED, kinds=listed(kind.value for kind in kinds))
    return [_received(row, service.name) for row in rows]


def types_in(sent: DataFrame, received: DataFrame) -> frozenset[Sent | Received]:
    """Return the types of the events in these outbox rows and inbox rows."""
    nobody = F.lit(None).cast("string")
    of_sent = sent.select(
        "upstream",
        nobody.alias("downstream"),
        nobody.alias("consumer_group"),
        *_type_columns(),
    )
    of_received = received.select("upstream", "downstream", "consumer_group", *_type_columns())
    rows = of_sent.unionByName(of_received).distinct().collect()
    return frozenset(
        _sent(row, row.upstream) if row.downstream is None else _received(row, row.downstream)
        for row in rows
    )


def rollbacks(databases: Databases, service: ServiceDatabase) -> DataFrame:
    """Return events of others that the service has taken back, and whether there was a cause."""
    frame = databases.frame(service, _ROLLBACKS, ahead=_ahead(databases, "r.created_at"))
    return frame.withColumn("downstream", F.lit(service.name))


def compensations(databases: Databases, service: ServiceDatabase) -> DataFrame:
    """Return the events of the service that its groups have compensated.

    The compensating rollback's row has the event's id. A later rollback of the same event is
    settled as well, but its row does not have the id.
    """
    return databases.frame(service, _COMPENSATIONS).withColumn("downstream", F.lit(service.name))


def _ahead(databases: Databases, *times: str) -> str:
    return is_ahead(*times, margin=databases.request.margin)


def _digests(databases: Databases, row: str) -> dict[str, str]:
    return {
        "payload_digest": payload_digest(row, all_utf8=databases.all_utf8),
        "envelope_digest": envelope_digest(row, all_utf8=databases.all_utf8),
    }


def _times(row: str, *columns: str) -> dict[str, str]:
    return {name: inside_calendar(f"{row}.{name}") for name in columns} | {"latest": LATEST}


def _sent(row: Any, upstream: str) -> Sent:
    return Sent(
        upstream=upstream,
        kind=TxKind(row.kind),
        topic=row.topic,
        event_type=row.event_type,
        causation_source=row.causation_source,
    )


def _received(row: Any, downstream: str) -> Received:
    return Received(
        downstream=downstream,
        group=row.consumer_group,
        source=row.upstream,
        kind=TxKind(row.kind),
        topic=row.topic,
        event_type=row.event_type,
        causation_source=row.causation_source,
    )


def _type_columns() -> list[Column]:
    is_rollback = F.col("kind") == TxKind.ROLLBACK.value
    return [
        F.col("kind"),
        F.col("topic"),
        F.col("event_type"),
        F.when(is_rollback, F.col("causation_source")).alias("causation_source"),
    ]
