"""Groups that the configuration calls former ones, and that receive events all the same."""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.reconcile.expectations import FormerGroup
from shieldtx.reconcile.observed import undeclared_kinds
from shieldtx.reconcile.request import ServiceDatabase

from .jdbc import Databases
from .row_filters import array_of, literal_time, quoted

_RECEIVED = """
    SELECT DISTINCT i.event_type FROM {inbox} i
    WHERE i.consumer_group = {group} AND i.tx_kind = ANY ({kinds}) AND {is_type}
      AND i.received_at > {since}
    ORDER BY 1"""


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
    kinds = undeclared_kinds(service.member)
    event_type = former.event_type
    rows = databases.rows(
        service,
        _RECEIVED,
        group=quoted(former.name),
        kinds=array_of(kind.value for kind in kinds),
        is_type="true" if event_type is None else f"i.event_type = {quoted(event_type)}",
        since=since,
    )
    return [row[0] for row in rows]
