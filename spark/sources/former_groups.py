"""Groups that the configuration calls former ones, and that receive events all the same."""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import FormerGroup, Received
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.unnamed_groups import is_named_for

from .jdbc import Databases
from .row_filters import literal_time, quoted

_RECEIVED = """
    SELECT DISTINCT i.source, i.tx_kind, i.topic, i.event_type, i.causation_source
    FROM {inbox} i
    WHERE i.consumer_group = {group} AND {is_type} AND i.received_at > {since}"""


def still_receiving(databases: Databases) -> Iterator[str]:
    """Say in sentences which groups have received events since a run knew them for former ones.

    Nothing is known before the first such run: what they received then may be the last of it.
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
