"""Digests of rows in order, computed by the databases: only rows of differing digests are read.

A digest covers the rows of a type in a bucket that were never taken back: published ones
(upstream), or ones done in time (downstream). If the digests of both sides are equal, each row has
its partner, with the same payload, key, business key and operation: all these pairs are MATCHED.
Any other row is odd: no digest includes it, and the scan returns its id. So a pair with an odd row
is read by id, and a pair without its partner lies in a bucket with different digests.

The buckets of a type leave the database in groups of neighbours, with one digest over each group.
If the digests of a group are equal, its buckets are not compared. So the database returns a tenth
of the rows, each with a text that is rarely parsed.

The scans dominate the cost of a run. Measured on PostgreSQL 18, with ten million rows of 300 B: per
row, 0.6 us to read it, 0.15 us to hash its payload, 0.25 us to find its bucket, 0.3 us to group it
by one number (0.7 us by three columns), 0.15 us to check whether it is odd.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.digest_buckets import Buckets, buckets_for
from shieldtx.reconcile.expectations import Received, Sent
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Memory

from ..sources.outbox_inbox import IS_ODD_UPSTREAM, is_odd_downstream
from ..sources.purged_upstream import OldestEvents, oldest_events
from ..sources.row_digests import event_digest
from ..sources.row_filters import TopicAndType, listed, quoted, range_of
from ..sources.server_checks import Servers

SENT, RECEIVED = "sent", "received"

_AT_ONCE = 4
"""Concurrent scans; several of them may be on one server."""

_BUCKET_BITS = 18
_BUCKET_MASK = (1 << _BUCKET_BITS) - 1
_TOGETHER_BITS = 4
_TOGETHER = 1 << _TOGETHER_BITS
"""Buckets in a group."""
_GROUP_BITS = _BUCKET_BITS - _TOGETHER_BITS
_GROUP_MASK = (1 << _GROUP_BITS) - 1

# The type of an event by its hash: hashing costs a scan less than looking up the names.
_TYPE_SENT = "hashtextextended(o.event_type, hashtextextended(o.topic, 0))"
_TYPE_RECEIVED = (
    "hashtextextended(i.event_type, hashtextextended(i.topic, "
    "hashtextextended(i.source, hashtextextended(i.consumer_group, 0))))"
)
# Also grouped by `odd`, which is NULL for all other rows. For an aggregate that collects `odd`,
# PostgreSQL would assume 8 kB a group and spill to the disk. Rows of all sources: the run must
# report events that it does not judge. Their key is NULL.
_DIGESTS_SENT = """
    SELECT CASE WHEN o.source = {name} THEN ({type} & ~{mask}) | {bucket} END AS key,
           CASE WHEN o.source <> {name} THEN json_build_array(o.source)::text WHEN {odd} THEN
               json_build_array(o.event_id, o.tx_kind, o.topic, o.event_type, o.causation_source)
               ::text END AS odd,
           count(*) AS events, bit_xor({digest}) AS digest
    FROM {outbox} o GROUP BY 1, 2"""
# Rows of all sources, so that the run can report sources that it does not know.
_DIGESTS_RECEIVED = """
    SELECT ({type} & ~{mask}) | {bucket} AS key, CASE WHEN i.source IN ({names}) AND {odd} THEN
               json_build_array(i.event_id, i.tx_kind, i.topic, i.event_type, i.causation_source,
                                i.consumer_group, i.source)::text END AS odd,
           count(*) AS events, bit_xor({digest}) AS digest
    FROM {inbox} i GROUP BY 1, 2"""
# With the order, PostgreSQL sorts the rows of the groups, one row a bucket. For a hash table of
# collecting aggregates it would assume 8 kB a group, see above.
_GROUPED = """
    SELECT (key >> {together}) >> {group} AS type,
           ((key >> {together}) & {group_mask})::int AS number,
           coalesce(sum(events) FILTER (WHERE odd IS NULL), 0)::bigint AS events,
           bit_xor(digest) FILTER (WHERE odd IS NULL) AS digest,
           string_agg((key & {mask}) || ' ' || events || ' ' || digest, ',' ORDER BY key)
               FILTER (WHERE odd IS NULL) AS buckets,
           '[' || string_agg(odd, ',') || ']' AS odd
    FROM ({buckets}) AS bucket GROUP BY key >> {together}"""
_TYPES_SENT = """
    SELECT DISTINCT {type} >> {bits} AS type, o.tx_kind, o.topic, o.event_type
    FROM {outbox} o WHERE o.source = {name} AND o.tx_kind = 'COMMIT' AND ({condition})"""
_TYPES_RECEIVED = """
    SELECT DISTINCT {type} >> {bits} AS type, i.tx_kind, i.topic, i.event_type,
           i.consumer_group, i.source
    FROM {inbox} i WHERE i.tx_kind = 'COMMIT' AND ({condition})"""

# The ids of UUIDv7 divide the time span of the events; statistics, if there are any, show where the
# ids are dense. Before the first ANALYZE, a table has no row count: its size is used, at a kilobyte
# a row.
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


class Group(NamedTuple):
    """The events of a type in a group of buckets."""

    events: int
    digest: int
    text: str
    """For each bucket: its index in the group, its events and their digest."""

    def buckets(self, number: int) -> dict[int, tuple[int, int]]:
        """Return events and digest by bucket number; `number` is that of the group."""
        return {
            number * _TOGETHER + int(place): (int(events), int(digest))
            for place, events, digest in (one.split(" ") for one in self.text.split(",") if one)
        }


NO_EVENTS = Group(events=0, digest=0, text="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Digests:
    """The digests of all services, and the rows that no digest includes."""

    buckets: Buckets
    groups: Mapping[Sent | Received, Mapping[int, Group]]
    """By type and number of the group."""
    odd_types: frozenset[Sent | Received]
    """The types of the odd rows."""
    odd: Mapping[tuple[str, str], Sequence[tuple[str, TopicAndType]]]
    """Ids, topics and event types of the odd rows, by side and service."""
    sources: Mapping[str, frozenset[str]]
    """By service: the other sources of events in its outbox."""
    oldest: Mapping[str, OldestEvents]
    """By service: the oldest events of its outbox, read before the digests."""


def digests_of(servers: Servers, memories: Mapping[str, Memory]) -> Digests:
    """Compute the digests of all outboxes and inboxes, each in one scan of its own database.

    `memories` must be those of the later reads, so that the same rows are odd.
    """
    services = servers.services
    rows = [servers.rows(service, _SIZE)[0].rows for service in services]
    samples = [row.event_id for s in services for row in servers.rows(s, _SAMPLES)]
    buckets = buckets_for(max(rows), samples)
    oldest = {service.name: oldest_events(servers, service) for service in services}
    asked = [(side, service) for side in (SENT, RECEIVED) for service in services]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        scans = list(pool.map(lambda one: _scan(servers, buckets, memories, *one), asked))
    return Digests(
        buckets=buckets,
        groups={type_: groups for scan in scans for type_, groups in scan.groups.items()},
        odd_types=frozenset(_type_of(s.service, *of_row) for s in scans for _, *of_row in s.odd),
        odd={
            (s.side, s.service): [(one, (topic, type_)) for one, _, topic, type_, *_ in s.odd]
            for s in scans
        },
        sources={s.service: s.sources for s in scans if s.side == SENT},
        oldest=oldest,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scan:
    """The result of the scan of a table."""

    side: str
    service: str
    groups: Mapping[Sent | Received, Mapping[int, Group]]
    odd: Sequence[Sequence[str]]
    """Ids and attributes of the odd rows, in the order of `_DIGESTS_SENT` or `_DIGESTS_RECEIVED`.
    """
    sources: frozenset[str]
    """The other sources of events in an outbox; empty for an inbox, which has rows of all sources.
    """


def _scan(
    servers: Servers,
    buckets: Buckets,
    memories: Mapping[str, Memory],
    side: str,
    service: ServiceDatabase,
) -> _Scan:
    odd_received = is_odd_downstream(memories.get(service.name))
    query, type_, is_odd, row = (
        (_DIGESTS_SENT, _TYPE_SENT, IS_ODD_UPSTREAM, "o")
        if side == SENT
        else (_DIGESTS_RECEIVED, _TYPE_RECEIVED, odd_received, "i")
    )
    grouped = _GROUPED.format(
        buckets=query.replace("{odd}", is_odd).replace("{mask}", str(_BUCKET_MASK)),
        together=_TOGETHER_BITS,
        mask=_TOGETHER - 1,
        group=_GROUP_BITS,
        group_mask=_GROUP_MASK,
    )
    names = {
        "type": type_,
        "bucket": buckets.sql.format(row=row),
        "digest": event_digest(row, all_utf8=servers.all_utf8),
        "name": quoted(service.name),
        "names": listed(each.name for each in servers.services),
    }
    groups: dict[int, dict[int, Group]] = defaultdict(dict)
    odd: list[Sequence[str]] = []
    sources: frozenset[str] = frozenset()
    for type_number, number, *of_group, listed_ids in servers.stream(service, grouped, **names):
        rows = json.loads(listed_ids or "[]")
        if type_number is None:
            sources = frozenset(source for (source,) in rows)
            continue
        odd += rows
        group = Group(*of_group)
        if group.events:
            groups[type_number][number] = group
    types = _types(servers, buckets, side, service, groups)
    return _Scan(
        side=side,
        service=service.name,
        groups={types[number]: found for number, found in groups.items() if number in types},
        odd=odd,
        sources=sources,
    )


def _types(
    servers: Servers,
    buckets: Buckets,
    side: str,
    service: ServiceDatabase,
    groups: Mapping[int, Mapping[int, Group]],
) -> dict[int, Sent | Received]:
    """Return the types by hash, each looked up in a group with some of its events."""
    types: dict[int, Sent | Received] = {}
    for type_number, found in groups.items():
        first = min(found) * _TOGETHER
        of_group = range(first, min(first + _TOGETHER, buckets.number))
        if type_number not in types:
            types |= _looked_up(servers, side, service, range_of(buckets, of_group))
        if type_number not in types:  # purged since
            types |= _looked_up(servers, side, service, "true")
    return types


def _looked_up(
    servers: Servers, side: str, service: ServiceDatabase, condition: str
) -> dict[int, Sent | Received]:
    query, type_ = (_TYPES_SENT, _TYPE_SENT) if side == SENT else (_TYPES_RECEIVED, _TYPE_RECEIVED)
    rows = servers.rows(
        service,
        query,
        type=type_,
        bits=str(_BUCKET_BITS),
        condition=condition,
        name=quoted(service.name),
    )
    return {
        number: _type_of(service.name, kind, topic, event_type, None, *more)
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
    """Return the type of an event; `receiver`: the group that received it, and the source."""
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
