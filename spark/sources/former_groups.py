"""Former groups by the configuration: the events that they have applied, and still receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import FormerGroup, Received, Route
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.unnamed_groups import is_named_for

from .driver_frames import union_of
from .jdbc import Databases
from .row_filters import literal_time, quoted, rows_of_texts

_RECEIVED = """
    SELECT DISTINCT i.source, i.tx_kind, i.topic, i.event_type, i.causation_source
    FROM {inbox} i
    WHERE i.consumer_group = {group} AND {is_type} AND i.received_at > {since}
      AND (i.tx_kind = 'COMMIT' OR i.causation_source = {name})"""
_APPLIED = """
    SELECT i.consumer_group, i.source AS causation_source, i.event_id AS causation_id
    FROM {inbox} i
    WHERE i.tx_kind = 'COMMIT' AND i.status IN ('INIT', 'PROCESSING', 'PROCESSED', 'DEAD')
      AND {is_theirs}
      AND NOT EXISTS (
          SELECT 1 FROM {inbox} r
          WHERE r.consumer_group = i.consumer_group AND r.compensated_id = i.event_id)"""


def still_receiving(databases: Databases) -> Iterator[str]:
    """Yield sentences for groups that have received events since a run knew them as former ones.

    Receipts before the first such run do not count: they may be the last ones. Rollbacks of other
    services' events, which the groups have applied before, may still come.
    """
    for service in databases.services:
        since = databases.request.past.former_since.get(service.name, {})
        for former in service.former_groups:
            began = since.get(str(former))
            types = [] if began is None else _types(databases, service, former, literal_time(began))
            if types:
                yield (
                    f"`former_groups` of {service.name} names {former}, which has received "
                    f"{', '.join(types)} since {began:%Y-%m-%d %H:%M:%S%z}: take it out if the "
                    "group still has to receive that, and otherwise stop the group; in that case "
                    "the inbox has to purge these events first"
                )


def _types(
    databases: Databases, service: ServiceDatabase, former: FormerGroup, since: str
) -> list[str]:
    event_type = former.event_type
    rows = databases.rows(
        service,
        _RECEIVED,
        group=quoted(former.name),
        is_type="true" if event_type is None else f"i.event_type = {quoted(event_type)}",
        since=since,
        name=quoted(service.name),
    )
    received = (
        Received(
            downstream=service.name,
            group=former.name,
            source=row.source,
            kind=TxKind(row.tx_kind),
            topic=row.topic,
            event_type=row.event_type,
            causation_source=row.causation_source if row.tx_kind == TxKind.ROLLBACK else None,
        )
        for row in rows
    )
    member = service.member
    return sorted({seen.event_type for seen in received if not is_named_for(member, seen)})


def applied_by_former_groups(databases: Databases, routes: Iterable[Route]) -> DataFrame | None:
    """Return the events that former groups have applied and not compensated; None: none matters.

    Open events are included: an open event may still be applied, which does not change its
    rollback's row.
    """
    wanted: dict[str, set[tuple[str, str, str, str]]] = defaultdict(set)
    for route in routes:
        if route.if_applied and route.causation_source is not None:
            of_type = route.causation_source, route.topic, route.event_type
            wanted[route.stream.downstream].add((route.group, *of_type))
    if not wanted:
        return None
    return union_of(
        databases.frame(service, _APPLIED, is_theirs=_any_of(wanted[service.name])).withColumn(
            "downstream", F.lit(service.name)
        )
        for service in databases.services
        if service.name in wanted
    )


def _any_of(types: Iterable[tuple[str, str, str, str]]) -> str:
    """Return an SQL condition: a row is of one of some groups, services, topics and types."""
    return f"(i.consumer_group, i.source, i.topic, i.event_type) IN ({rows_of_texts(types)})"
