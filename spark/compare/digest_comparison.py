"""Compares digests, and selects the rows that must be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.digest_buckets import Buckets
from shieldtx.reconcile.expectations import Received, Route, Sent

from ..sources.driver_frames import NUMBER, TEXT, TRUTH, frame_of
from ..sources.row_filters import EVERYTHING, Read, TopicAndType, by_buckets
from .digests import NO_EVENTS, RECEIVED, SENT, Digests
from .transforms import PAIR

_MOST_RANGES = 20_000
"""The most id ranges to read by the primary key; if more buckets differ, all rows are read."""

_BUCKET = dict.fromkeys((*PAIR, "topic", "event_type"), TEXT) | {"bucket": NUMBER}
_DIFFERING = _BUCKET | {"differs": TRUTH}


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The result of comparing the digests of a route's events."""

    route: Route
    clean: int
    """Events in the buckets with equal digests."""
    differing: Sequence[int]
    """The other buckets."""
    too_old: int = 0
    """Events in the other buckets of which only the group has a row, and which are not read."""


def compared(digests: Digests, routes: Iterable[Route]) -> list[Compared]:
    """Return the comparison of digests of all routes of COMMIT events; rollbacks have no digests.

    Done in Python, not in Spark: the groups of ten million events take 0.02 s, a first job of Spark
    three.
    """
    return [_compared(digests, r) for r in routes if r.stream.kind is TxKind.COMMIT]


def _compared(digests: Digests, route: Route) -> Compared:
    """Compare the groups of buckets, and the single buckets of differing groups."""
    all_sent, all_received = (digests.groups.get(end, {}) for end in _ends(route))
    clean = 0
    differing = []
    for number in sorted(all_received.keys() | (all_sent.keys() if route.expected else ())):
        sent = all_sent.get(number, NO_EVENTS)
        received = all_received.get(number, NO_EVENTS)
        if (sent.events, sent.digest) == (received.events, received.digest):
            clean += sent.events
            continue
        buckets_sent, buckets_received = sent.buckets(number), received.buckets(number)
        for bucket in sorted(buckets_sent.keys() | buckets_received.keys()):
            if buckets_sent.get(bucket) == buckets_received.get(bucket):
                clean += buckets_sent[bucket][0]
            elif route.expected or bucket in buckets_received:
                differing.append(bucket)
    return Compared(route=route, clean=clean, differing=differing)


def _ends(route: Route) -> tuple[Sent, Received]:
    """Return the types of a route's events, as sent and as received."""
    stream, topic_and_type = route.stream, {"topic": route.topic, "event_type": route.event_type}
    return (
        Sent(upstream=stream.upstream, kind=stream.kind, **topic_and_type),
        Received(
            downstream=stream.downstream,
            group=route.group,
            source=stream.upstream,
            kind=stream.kind,
            **topic_and_type,
        ),
    )


def reads(
    digests: Digests, found: Iterable[Compared]
) -> tuple[Mapping[str, Read], Mapping[str, Read]]:
    """Return, by service, the rows of its outbox and of its inbox that must be read."""
    found = list(found)
    upstream: _Numbers = defaultdict(lambda: defaultdict(set))
    downstream: _Numbers = defaultdict(lambda: defaultdict(set))
    for each in found:
        stream, topic_and_type = each.route.stream, (each.route.topic, each.route.event_type)
        upstream[stream.upstream][topic_and_type].update(each.differing)
        downstream[stream.downstream][topic_and_type].update(each.differing)
    odd_sent, odd_received = _odd(digests, SENT), _odd(digests, RECEIVED)
    for service, partners in _partners(found, odd_received).items():
        odd_sent[service] = [*odd_sent.get(service, ()), *partners]
    return (
        _reads(digests.buckets, upstream, odd_sent),
        _reads(digests.buckets, downstream, odd_received),
    )


_Odd = dict[str, Sequence[tuple[str, TopicAndType]]]
"""Ids of events with their types, by the service that has the rows."""


def _odd(digests: Digests, side: str) -> _Odd:
    return {service: ids for (of, service), ids in digests.odd.items() if of == side}


def _partners(found: Iterable[Compared], odd_received: _Odd) -> _Odd:
    """Return the events of odd inbox rows, for groups that are not expected to receive them.

    In the buckets of all other groups, such a row makes the digests differ.
    """
    unexpected = [each.route for each in found if not each.route.expected]
    received_types: dict[str, set[tuple[str, TopicAndType]]] = defaultdict(set)
    for route in unexpected:
        received_types[route.stream.downstream].add(
            (route.stream.upstream, (route.topic, route.event_type))
        )
    partners: dict[str, list[tuple[str, TopicAndType]]] = defaultdict(list)
    for downstream, received in received_types.items():
        for upstream, of in received:
            odd = odd_received.get(downstream, ())
            partners[upstream] += [event for event in odd if event[1] == of]
    return dict(partners)


def to_read(pairs: DataFrame, found: Iterable[Compared]) -> DataFrame:
    """Keep the pairs that are not already counted by equal digests."""
    is_odd = F.coalesce("upstream_odd", F.lit(col=False)) | F.coalesce(
        "downstream_odd", F.lit(col=False)
    )
    rows = [
        (
            stream.kind.value,
            stream.upstream,
            stream.downstream,
            route.group,
            *topic_and_type,
            bucket,
            True,
        )
        for each in found
        for route in [each.route]
        for stream in [route.stream]
        for topic_and_type in [(route.topic, route.event_type)]
        for bucket in each.differing
    ]
    differing = frame_of(pairs.sparkSession, _DIFFERING, rows)
    return (
        pairs.join(F.broadcast(differing), on=[*_BUCKET], how="left")
        .where(is_odd | F.col("differs").isNotNull())
        .drop("differs")
    )


_Numbers = dict[str, dict[TopicAndType, set[int]]]
"""Bucket numbers, by service and type."""


def _reads(buckets: Buckets, numbers: _Numbers, odd: _Odd) -> dict[str, Read]:
    return {
        name: _read_of(buckets, numbers.get(name, {}), odd.get(name, ()))
        for name in sorted({*odd, *numbers})
    }


def _read_of(
    buckets: Buckets,
    numbers: Mapping[TopicAndType, set[int]],
    odd: Iterable[tuple[str, TopicAndType]],
) -> Read:
    if sum(map(len, numbers.values())) > _MOST_RANGES:
        return replace(EVERYTHING, bucket=buckets.sql)
    return by_buckets(buckets, numbers, and_ids=odd)
