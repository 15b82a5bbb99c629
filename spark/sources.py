"""Reads outboxes and inboxes over JDBC: narrow, in parallel, and without the right to write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.reconcile.expectations import Received, Sent
from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.request import Flow, ServiceDatabase
from shieldtx.reconcile.window import Clock
from shieldtx.states import TxKind

PARTITIONS = 4
"""Parts of a read. Measured on 2 cores: four, with this fetch size, take half the time or less of
Spark's single one."""
FETCH_SIZE = 10_000

# An open row lives for as long as the row that holds it back: the first one of its key. Both
# lookups are for open rows only, and each is one probe of a partial index on open rows.
_OUTBOX = """(
    SELECT o.event_id, o.seq, o.source, o.tx_kind, o.causation_source, o.causation_id, o.topic,
           o.event_type, o.status, o.created_at, o.settled_at,
           CASE WHEN o.settled_at IS NULL
                THEN greatest(o.created_at, o.due_at, o.lease_until, (
                    SELECT max(greatest(h.due_at, h.lease_until)) FROM {table} h
                    WHERE h.settled_at IS NULL AND h.waiting AND h.holds_key
                      AND h.shard = o.shard AND h.key = o.key AND h.seq < o.seq))
                ELSE greatest(o.created_at, o.settled_at)
           END AS moved_at
    FROM {table} o) AS outbox"""
_INBOX = """(
    SELECT i.event_id, i.seq, i.source, i.tx_kind, i.causation_source, i.causation_id, i.topic,
           i.event_type, i.consumer_group, i.status, i.event_time, i.received_at, i.settled_at,
           i.compensated_id,
           CASE WHEN i.settled_at IS NULL
                THEN greatest(i.received_at, i.due_at, i.lease_until, (
                    SELECT greatest(h.due_at, h.lease_until) FROM {table} h
                    WHERE h.settled_at IS NULL AND h.consumer_group = i.consumer_group
                      AND h.topic = i.topic AND h.key = i.key AND h.seq < i.seq
                    ORDER BY h.seq LIMIT 1))
                ELSE greatest(i.received_at, i.settled_at)
           END AS moved_at
    FROM {table} i) AS inbox"""
_TYPES_SENT = """(
    SELECT DISTINCT source, tx_kind, causation_source, topic, event_type FROM {table}) AS sent"""
_TYPES_RECEIVED = """(
    SELECT DISTINCT source, tx_kind, causation_source, consumer_group, topic, event_type
    FROM {table}) AS received"""

# Vacuum writes no rows of ours. Of other roles' sessions a role without pg_read_all_stats sees that
# they are there, but not since when their transactions run.
_CLOCK = """(
    SELECT (extract(epoch FROM now()) * 1000000)::bigint AS now,
           (SELECT (extract(epoch FROM min(xact_start)) * 1000000)::bigint FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
              AND backend_type <> 'autovacuum worker') AS oldest_transaction,
           (SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND usesysid IS NOT NULL
              AND NOT pg_has_role(usesysid, 'USAGE')
              AND NOT pg_has_role('pg_read_all_stats', 'USAGE')) AS hidden_sessions,
           pg_is_in_recovery() AS is_replica,
           current_user::text AS role) AS clock"""


def clock(spark: SparkSession, service: ServiceDatabase) -> Clock:
    """Ask a database for its time and its oldest transaction; comes before all other reads."""
    row = _read(spark, service, _CLOCK).collect()[0]
    return Clock(
        service=service.name,
        now=_time(row.now),
        oldest_transaction=None
        if row.oldest_transaction is None
        else _time(row.oldest_transaction),
        obstacle=_obstacle(service, row),
        retention=service.retention,
    )


def outbox(spark: SparkSession, flow: Flow) -> DataFrame:
    """Read what the upstream wrote of the flow's events, without payloads."""
    rows = _read(spark, flow.upstream, _OUTBOX, "shield_outbox", split=True)
    return rows.where(_belongs_to(flow))


def inbox(spark: SparkSession, flow: Flow) -> DataFrame:
    """Read what the downstream's groups received of the flow's events, without payloads."""
    rows = _read(spark, flow.downstream, _INBOX, "shield_inbox", split=True)
    return rows.where(_belongs_to(flow))


def types_sent(spark: SparkSession, flow: Flow) -> list[Sent]:
    """Return of which types the flow's events are, by the outbox."""
    rows = _read(spark, flow.upstream, _TYPES_SENT, "shield_outbox").where(_belongs_to(flow))
    return [Sent(topic=row.topic, event_type=row.event_type) for row in rows.collect()]


def types_received(spark: SparkSession, flow: Flow) -> list[Received]:
    """Return which groups have received events of which types, by the inbox."""
    rows = _read(spark, flow.downstream, _TYPES_RECEIVED, "shield_inbox").where(_belongs_to(flow))
    return [
        Received(group=row.consumer_group, topic=row.topic, event_type=row.event_type)
        for row in rows.collect()
    ]


def _belongs_to(flow: Flow) -> Column:
    is_from_upstream = F.col("source") == flow.upstream.name
    is_of_kind = F.col("tx_kind") == flow.kind.value
    takes_back_downstreams = F.col("causation_source") == flow.downstream.name
    if flow.kind is TxKind.COMMIT:
        return is_from_upstream & is_of_kind
    return is_from_upstream & is_of_kind & takes_back_downstreams


def _read(
    spark: SparkSession,
    service: ServiceDatabase,
    query: str,
    table: str = "",
    *,
    split: bool = False,
) -> DataFrame:
    """Read a query over a table of the service; Spark adds its filters to the query's WHERE.

    The parts of a split read are at moments of their own. So they are cut by `seq`, which never
    changes: each row is in exactly one part, whatever happens to it in the meantime.
    """
    address = jdbc_address(service.name, service.url)
    quoted = f'"{table}"' if service.schema is None else f'"{service.schema}"."{table}"'
    properties = {**address.properties, "fetchsize": str(FETCH_SIZE)}
    parts = [f"seq % {PARTITIONS} = {part}" for part in range(PARTITIONS)]
    relation = query.format(table=quoted)
    try:
        if split:
            return spark.read.jdbc(address.url, relation, predicates=parts, properties=properties)
        return spark.read.jdbc(address.url, relation, properties=properties)
    except Exception as error:
        error.add_note(f"in the database of service {service.name}")
        raise


def _time(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def _obstacle(service: ServiceDatabase, row: Row) -> str:
    if row.is_replica:
        return (
            f"the database of {service.name} is a replica, where the transactions that run on its "
            "primary cannot be seen: name the primary"
        )
    if row.hidden_sessions:
        return (
            f"in the database of {service.name}, role {row.role} cannot see since when the "
            f"transactions of other roles run: GRANT pg_read_all_stats TO {row.role}"
        )
    return ""
