"""Digests of what is in order, made inside the databases: only where they differ rows are read.

A digest is over the rows of a type in a bucket that are published and never taken back (upstream),
or done and never taken back (downstream). Where those of both sides are the same, each row has its
partner, with the same payload: all these pairs are MATCHED. Any other row is odd: it is in no
digest, and its id is told. So a pair of which a row is odd is read by that id, or it lies in a
bucket whose digests differ.

The buckets of a type leave the database in groups of neighbours, with a digest over them all: where
those of both sides are the same, nobody looks at the buckets. So Spark is handed a tenth of the
rows, and each row costs there more than a bucket costs here.

What a scan costs decides what a run costs. Measured on PostgreSQL 18, of ten million rows of 300 B:
0.6 us a row to read it, 0.15 us to hash it, 0.25 us to find its bucket, 0.3 us to group it by one
number (0.7 us by three columns), 0.15 us to see whether it is odd.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.reconcile.buckets import Buckets, buckets_for
from shieldtx.reconcile.expectations import Received, Sent
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.states import TxKind

from .databases import Databases
from .frames import union_of
from .reads import Words, listed, quoted, range_of
from .sources import IS_ODD_DOWNSTREAM, IS_ODD_UPSTREAM

SENT, RECEIVED = "sent", "received"

_BUCKET_BITS = 18
_BUCKET_MASK = (1 << _BUCKET_BITS) - 1
_TOGETHER_BITS = 4
_TOGETHER = 1 << _TOGETHER_BITS
"""Buckets in a group."""
_GROUP_BITS = _BUCKET_BITS - _TOGETHER_BITS
_GROUP_MASK = (1 << _GROUP_BITS) - 1

# The type of an event by its hash: to look its words up costs a scan more than to hash them.
_TYPE_SENT = "hashtextextended(o.event_type, hashtextextended(o.topic, 0))"
_TYPE_RECEIVED = (
    "hashtextextended(i.event_type, hashtextextended(i.topic, "
    "hashtextextended(i.source, hashtextextended(i.consumer_group, 0))))"
)
# Grouped by what is odd, too: it is NULL for all other rows, and an aggregate that gathers it is
# taken by PostgreSQL for one that needs 8 kB a group, for which it would go to the disk.
_DIGESTS_SENT = """
    SELECT ({type} & ~{mask}) | {bucket} AS key, CASE WHEN {odd} THEN
               json_build_array(o.event_id, o.tx_kind, o.topic, o.event_type, o.causation_source)
               ::text END AS odd,
           count(*) AS events, bit_xor(
               uuid_hash_extended(o.event_id, hashtextextended(o.payload, 0))) AS digest
    FROM {outbox} o WHERE o.source = {name} GROUP BY 1, 2"""
_DIGESTS_RECEIVED = """
    SELECT ({type} & ~{mask}) | {bucket} AS key, CASE WHEN {odd} THEN
               json_build_array(i.event_id, i.tx_kind, i.topic, i.event_type, i.causation_source,
                                i.consumer_group, i.source)::text END AS odd,
           count(*) AS events, bit_xor(
               uuid_hash_extended(i.event_id, hashtextextended(i.payload, 0))) AS digest
    FROM {inbox} i WHERE i.source IN ({names}) GROUP BY 1, 2"""
# The order lets PostgreSQL sort what it groups, a row a bucket: a hash table of aggregates that
# gather would be taken for one of 8 kB a group, see above.
_GROUPED = """
    SELECT key >> {together} AS key,
           coalesce(sum(events) FILTER (WHERE odd IS NULL), 0)::bigint AS events,
           bit_xor(digest) FILTER (WHERE odd IS NULL) AS digest,
           string_agg((key & {mask}) || ' ' || events || ' ' || digest, ',' ORDER BY key)
               FILTER (WHERE odd IS NULL) AS buckets,
           '[' || string_agg(odd, ',') || ']' AS odd
    FROM ({buckets}) AS bucket GROUP BY 1"""
_TYPES_SENT = """
    SELECT DISTINCT {type} >> {bits} AS type, o.tx_kind, o.topic, o.event_type
    FROM {outbox} o WHERE o.source = {name} AND o.tx_kind = 'COMMIT' AND ({condition})"""
_TYPES_RECEIVED = """
    SELECT DISTINCT {type} >> {bits} AS type, i.tx_kind, i.topic, i.event_type,
           i.consumer_group, i.source
    FROM {inbox} i WHERE i.tx_kind = 'COMMIT' AND ({condition})"""

# The ids of UUIDv7 divide the time that the events took; statistics, where there are some, say
# where they lie close together.
# Before the first ANALYZE a table has no number of rows: then its size tells, a kilobyte each.
_SIZE = """
    SELECT max(CASE WHEN reltuples > 0 THEN reltuples
                    ELSE pg_relation_size(oid) / 1024 END)::bigint AS rows
    FROM pg_class WHERE oid IN ('{outbox}'::regclass, '{inbox}'::regclass)"""
_SAMPLES = """
    SELECT unnest(s.histogram_bounds::text::uuid[]) AS event_id
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname
    WHERE c.oid = '{outbox}'::regclass AND s.attname = 'event_id'
    UNION ALL (SELECT event_id FROM {outbox} ORDER BY event_id LIMIT 1)
    UNION ALL (SELECT event_id FROM {outbox} ORDER BY event_id DESC LIMIT 1)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Digests:
    """The digests of all services, and what is told of the rows that are in none."""

    buckets: Buckets
    frame: DataFrame
    """Of `side`, `service`, `type`, `group`, `events`, `digest`, `buckets` and `odd`."""
    types: Mapping[tuple[str, str, int], Sent | Received]
    """What the types are, by side, service and number."""
    odd_types: frozenset[Sent | Received]
    """Those of the odd rows."""
    odd: Mapping[tuple[str, str], Sequence[tuple[str, Words]]]
    """Their ids, topics and event types, by side and service."""


def digests_of(databases: Databases) -> Digests:
    """Digest all outboxes and inboxes, each in one scan of its own database."""
    services = databases.services
    rows = [databases.rows(service, _SIZE)[0].rows for service in services]
    samples = [row.event_id for s in services for row in databases.rows(s, _SAMPLES)]
    buckets = buckets_for(max(rows), samples)
    read = [
        *(_read(databases, s, SENT, buckets) for s in services),
        *(_read(databases, s, RECEIVED, buckets) for s in services),
    ]
    frame = union_of(read).persist()
    types, odd_types, odd = _told(databases, frame, buckets)
    return Digests(
        buckets=buckets, frame=frame, types=types, odd_types=frozenset(odd_types), odd=odd
    )


def buckets_in(group: int, text: str | None) -> dict[int, tuple[int, int]]:
    """Read the column `buckets` of a group: events and digest by the number of the bucket."""
    return {
        group * _TOGETHER + int(place): (int(events), int(digest))
        for place, events, digest in (one.split(" ") for one in (text or "").split(",") if one)
    }


def _read(databases: Databases, service: ServiceDatabase, side: str, buckets: Buckets) -> DataFrame:
    query, type_, odd, row = (
        (_DIGESTS_SENT, _TYPE_SENT, IS_ODD_UPSTREAM, "o")
        if side == SENT
        else (_DIGESTS_RECEIVED, _TYPE_RECEIVED, IS_ODD_DOWNSTREAM, "i")
    )
    grouped = _GROUPED.format(
        buckets=query.replace("{odd}", odd).replace("{mask}", str(_BUCKET_MASK)),
        together=_TOGETHER_BITS,
        mask=_TOGETHER - 1,
    )
    read = databases.frame(
        service,
        grouped,
        fetch_size=0,
        type=type_,
        bucket=buckets.sql.format(row=row),
        name=quoted(service.name),
        names=listed(each.name for each in databases.services),
    )
    return read.select(
        F.lit(side).alias("side"),
        F.lit(service.name).alias("service"),
        F.shiftright("key", _GROUP_BITS).alias("type"),
        F.col("key").bitwiseAND(F.lit(_GROUP_MASK).cast("bigint")).cast("int").alias("group"),
        "events",
        "digest",
        "buckets",
        "odd",
    )


def _told(
    databases: Databases, frame: DataFrame, buckets: Buckets
) -> tuple[
    dict[tuple[str, str, int], Sent | Received],
    set[Sent | Received],
    dict[tuple[str, str], list[tuple[str, Words]]],
]:
    """Return the types by their numbers, those of the odd rows, and what is told of these."""
    types: dict[tuple[str, str, int], Sent | Received] = {}
    odd_types: set[Sent | Received] = set()
    odd: dict[tuple[str, str], list[tuple[str, Words]]] = defaultdict(list)
    services = {service.name: service for service in databases.services}
    known = frame.groupBy("side", "service", "type").agg(
        F.min(F.when(F.col("events") > 0, F.col("group"))).alias("group"),
        F.collect_list("odd").alias("odd"),
    )
    for row in known.collect():
        for event_id, *words in (one for some in row.odd for one in json.loads(some)):
            _, topic, event_type, *_ = words
            odd[row.side, row.service].append((event_id, (topic, event_type)))
            odd_types.add(_type_of(row.service, *words))
        number = (row.side, row.service, row.type)
        if row.group is not None and number not in types:
            service = services[row.service]
            types |= _looked_up(databases, service, row.side, _condition_of(buckets, row.group))
            if number not in types:  # purged since
                types |= _looked_up(databases, service, row.side, "true")
    return types, odd_types, odd


def _condition_of(buckets: Buckets, group: int) -> str:
    first = group * _TOGETHER
    return range_of(buckets, range(first, min(first + _TOGETHER, buckets.number)))


def _looked_up(
    databases: Databases, service: ServiceDatabase, side: str, condition: str
) -> dict[tuple[str, str, int], Sent | Received]:
    query, type_ = (_TYPES_SENT, _TYPE_SENT) if side == SENT else (_TYPES_RECEIVED, _TYPE_RECEIVED)
    rows = databases.rows(
        service,
        query,
        type=type_,
        bits=str(_BUCKET_BITS),
        condition=condition,
        name=quoted(service.name),
    )
    return {
        (side, service.name, number): _type_of(service.name, kind, topic, event_type, None, *more)
        for number, kind, topic, event_type, *more in rows
    }


def _type_of(
    service: str,
    kind: str,
    topic: str,
    event_type: str,
    causation_source: str | None,
    *receiver: str,
) -> Sent | Received:
    """Return the type of an event; `receiver`: the group that received it, and from whom."""
    taken_back_from = causation_source if kind == TxKind.ROLLBACK else None
    if not receiver:
        return Sent(
            upstream=service,
            kind=TxKind(kind),
            topic=topic,
            event_type=event_type,
            causation_source=taken_back_from,
        )
    group, source = receiver
    return Received(
        downstream=service,
        group=group,
        source=source,
        kind=TxKind(kind),
        topic=topic,
        event_type=event_type,
        causation_source=taken_back_from,
    )
