"""Compares digests, and says what has to be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.reconcile.buckets import Buckets
from shieldtx.reconcile.expectations import Received, Route, Sent
from shieldtx.states import TxKind

from .databases import Databases
from .digests import RECEIVED, SENT, Digests, buckets_in
from .frames import BIG, NUMBER, TEXT, TRUTH, frame_of
from .reads import EVERYTHING, Read, Words, by_buckets
from .transforms import PAIR

_MOST_RANGES = 20_000
"""Of ids, to be read by the primary key; where more buckets differ, all rows are read."""

_ENDS = {"side": TEXT, "service": TEXT, "type": BIG, "route": NUMBER, "expected": TRUTH}
_BUCKET = dict.fromkeys((*PAIR, "topic", "event_type"), TEXT) | {"bucket": NUMBER}
_DIFFERING = _BUCKET | {"differs": TRUTH}


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What came of comparing the digests of a route's events."""

    route: Route
    clean: int
    """Events in the buckets whose digests are the same."""
    differing: Sequence[int]
    """The other buckets."""


def compared(databases: Databases, digests: Digests, routes: Iterable[Route]) -> list[Compared]:
    """Compare the digests of all routes of events; those that bring rollbacks have none."""
    compared_routes = [route for route in routes if route.stream.kind is TxKind.COMMIT]
    ends = _ends_frame(databases.spark, compared_routes, digests.types)
    of_group = (
        digests.frame.where(F.col("events") > 0)
        .join(F.broadcast(ends), on=["side", "service", "type"], how="inner")
        .groupBy("route", "expected", "group")
        .agg(
            _events_of(SENT).alias("sent"),
            _events_of(RECEIVED).alias("received"),
            F.bit_xor("digest").alias("difference"),
            _buckets_of(SENT).alias("buckets_sent"),
            _buckets_of(RECEIVED).alias("buckets_received"),
        )
        .where(F.col("expected") | (F.col("received") > 0))
    )
    is_same = (F.col("sent") == F.col("received")) & (F.col("difference") == 0)
    found = of_group.groupBy("route").agg(
        F.coalesce(F.sum(F.when(is_same, F.col("sent"))), F.lit(0)).alias("clean"),
        F.collect_list(
            F.when(~is_same, F.struct("group", "buckets_sent", "buckets_received"))
        ).alias("differing"),
    )
    return [
        _compared_in(compared_routes[row.route], row.clean, row.differing)
        for row in found.collect()
    ]


def _compared_in(route: Route, clean: int, groups: Iterable[Row]) -> Compared:
    """Look into the groups whose digests differ, for the buckets that do it."""
    differing = []
    for row in groups:
        sent = buckets_in(row.group, row.buckets_sent)
        received = buckets_in(row.group, row.buckets_received)
        for bucket in sorted(sent.keys() | received.keys()):
            if sent.get(bucket) == received.get(bucket):
                clean += sent[bucket][0]
            elif route.expected or bucket in received:
                differing.append(bucket)
    return Compared(route=route, clean=clean, differing=differing)


def _events_of(side: str) -> Column:
    return F.sum(F.when(F.col("side") == side, F.col("events")).otherwise(0))


def _buckets_of(side: str) -> Column:
    """Of the one row that a side has of a type in a group."""
    return F.max(F.when(F.col("side") == side, F.col("buckets")))


def _ends_frame(
    spark: SparkSession,
    routes: Sequence[Route],
    types: Mapping[tuple[str, str, int], Sent | Received],
) -> DataFrame:
    """Say between which types of which services the routes go."""
    numbers = {of: key for key, of in types.items()}
    rows = []
    for number, route in enumerate(routes):
        stream, words = route.stream, {"topic": route.topic, "event_type": route.event_type}
        ends = (
            Sent(upstream=stream.upstream, kind=stream.kind, **words),
            Received(
                downstream=stream.downstream,
                group=route.group,
                source=stream.upstream,
                kind=stream.kind,
                **words,
            ),
        )
        rows += [(*numbers[end], number, route.expected) for end in ends if end in numbers]
    return frame_of(spark, _ENDS, rows)


def reads(
    digests: Digests, found: Iterable[Compared]
) -> tuple[Mapping[str, Read], Mapping[str, Read]]:
    """Return, by service, which rows of its outbox and of its inbox have to be read."""
    upstream: _Numbers = defaultdict(lambda: defaultdict(set))
    downstream: _Numbers = defaultdict(lambda: defaultdict(set))
    for each in found:
        stream, words = each.route.stream, (each.route.topic, each.route.event_type)
        upstream[stream.upstream][words].update(each.differing)
        downstream[stream.downstream][words].update(each.differing)
    return _reads(digests, SENT, upstream), _reads(digests, RECEIVED, downstream)


def to_read(pairs: DataFrame, found: Iterable[Compared]) -> DataFrame:
    """Keep the pairs that no two equal digests have counted already."""
    is_odd = F.coalesce("upstream_odd", F.lit(col=False)) | F.coalesce(
        "downstream_odd", F.lit(col=False)
    )
    rows = [
        (stream.kind.value, stream.upstream, stream.downstream, route.group, *words, bucket, True)
        for each in found
        for route in [each.route]
        for stream in [route.stream]
        for words in [(route.topic, route.event_type)]
        for bucket in each.differing
    ]
    differing = frame_of(pairs.sparkSession, _DIFFERING, rows)
    return (
        pairs.join(F.broadcast(differing), on=[*_BUCKET], how="left")
        .where(is_odd | F.col("differs").isNotNull())
        .drop("differs")
    )


_Numbers = dict[str, dict[Words, set[int]]]
"""Of buckets, by service and type."""


def _reads(digests: Digests, side: str, numbers: _Numbers) -> dict[str, Read]:
    odd = {service: told for (of, service), told in digests.odd.items() if of == side}
    return {
        name: _read_of(digests.buckets, numbers.get(name, {}), odd.get(name, ()))
        for name in sorted({*odd, *numbers})
    }


def _read_of(
    buckets: Buckets, numbers: Mapping[Words, set[int]], odd: Iterable[tuple[str, Words]]
) -> Read:
    if sum(map(len, numbers.values())) > _MOST_RANGES:
        return replace(EVERYTHING, bucket=buckets.sql)
    return by_buckets(buckets, numbers, and_ids=odd)
