"""Digests of what is in order, made inside the databases: only where they differ rows are read.

A digest is over the rows of a type in a bucket that are published and never taken back (upstream),
or done in time and never taken back (downstream). Where those of both sides are the same, each row
has its partner, with the same payload, key, business key and operation: all these pairs are
MATCHED. Any other row is odd: it is in no digest, and its id is told. So a pair of which a row is
odd is read by that id, or it lies in a bucket whose digests differ.

The buckets of a type leave the database in groups of neighbours, with a digest over them all: where
those of both sides are the same, nobody looks at the buckets. So a tenth of the rows leave the
database, and a text for each that is hardly ever read.

What a scan costs decides what a run costs. Measured on PostgreSQL 18, of ten million rows of 300 B:
0.6 us a row to read it, 0.15 us to hash its payload, 0.25 us to find its bucket, 0.3 us to group it
by one number (0.7 us by three columns), 0.15 us to see whether it is odd.
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
from ..sources.row_filters import Words, listed, quoted, range_of
from ..sources.server_checks import Servers

SENT, RECEIVED = "sent", "received"

_AT_ONCE = 4
"""Scans; several of them may be for one server."""

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
# Of all sources, too: whose events nobody judges has to be said. They have no key.
_DIGESTS_SENT = """
    SELECT CASE WHEN o.source = {name} THEN ({type} & ~{mask}) | {bucket} END AS key,
           CASE WHEN o.source <> {name} THEN json_build_array(o.source)::text WHEN {odd} THEN
               json_build_array(o.event_id, o.tx_kind, o.topic, o.event_type, o.causation_source)
               ::text END AS odd,
           count(*) AS events, bit_xor({digest}) AS digest
    FROM {outbox} o GROUP BY 1, 2"""
# Of all sources, so that those are known that the run does not know: it has to say so.
_DIGESTS_RECEIVED = """
    SELECT ({type} & ~{mask}) | {bucket} AS key, CASE WHEN i.source IN ({names}) AND {odd} THEN
               json_build_array(i.event_id, i.tx_kind, i.topic, i.event_type, i.causation_source,
                                i.consumer_group, i.source)::text END AS odd,
           count(*) AS events, bit_xor({digest}) AS digest
    FROM {inbox} i GROUP BY 1, 2"""
# The order lets PostgreSQL sort what it groups, a row a bucket: a hash table of aggregates that
# gather would be taken for one of 8 kB a group, see above.
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


class Group(NamedTuple):
    """The events of a type that lie in a group of buckets."""

    events: int
    digest: int
    text: str
    """Of each bucket its place in the group, its events and their digest."""

    def buckets(self, number: int) -> dict[int, tuple[int, int]]:
        """Return events and digest by the number of the bucket; `number` is that of the group."""
        return {
            number * _TOGETHER + int(place): (int(events), int(digest))
            for place, events, digest in (one.split(" ") for one in self.text.split(",") if one)
        }


NO_EVENTS = Group(events=0, digest=0, text="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Digests:
    """The digests of all services, and what is told of the rows that are in none."""

    buckets: Buckets
    groups: Mapping[Sent | Received, Mapping[int, Group]]
    """By type and number."""
    odd_types: frozenset[Sent | Received]
    """Those of the odd rows."""
    odd: Mapping[tuple[str, str], Sequence[tuple[str, Words]]]
    """Their ids, topics and event types, by side and service."""
    sources: Mapping[str, frozenset[str]]
    """By service, others whose events its outbox holds."""
    oldest: Mapping[str, OldestEvents]
    """By service, of its outbox, from before it was digested."""


def digests_of(servers: Servers, memories: Mapping[str, Memory]) -> Digests:
    """Digest all outboxes and inboxes, each in one scan of its own database.

    `memories` are those by which rows are read later: what is odd has to be the same.
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
        odd_types=frozenset(_type_of(s.service, *words) for s in scans for _, *words in s.odd),
        odd={
            (s.side, s.service): [(one, (topic, type_)) for one, _, topic, type_, *_ in s.odd]
            for s in scans
        },
        sources={s.service: s.sources for s in scans if s.side == SENT},
        oldest=oldest,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scan:
    """What a scan of a table tells."""

    side: str
    service: str
    groups: Mapping[Sent | Received, Mapping[int, Group]]
    odd: Sequence[Sequence[str]]
    """The ids and words of the odd rows, in the order of `_DIGESTS_SENT` or `_DIGESTS_RECEIVED`."""
    sources: frozenset[str]
    """Others whose events the table holds; of an inbox, whose rows are of all sources, none."""


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
    for type_number, number, *of_group, told in servers.stream(service, grouped, **names):
        rows = json.loads(told or "[]")
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
    """Look up what the types are, each by a group with some of its events."""
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
