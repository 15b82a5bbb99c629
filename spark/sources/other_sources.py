"""Events in the services' outboxes that belong to none of the services: no run judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from shieldtx.reconcile.request import ServiceDatabase

from . import incremental
from .row_filters import listed
from .server_checks import Servers

_COUNTED = """
    SELECT o.source, o.status, count(*) AS events FROM {outbox} o
    WHERE o.source NOT IN ({names}) AND {condition} GROUP BY 1, 2"""


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherSources:
    """Sentences about the events of other sources in the services' outboxes."""

    left_out: tuple[str, ...] = ()
    """About sources that take no part in the run by the configuration."""
    obstacles: tuple[str, ...] = ()


def other_sources(servers: Servers, seen: Mapping[str, Collection[str]] | None) -> OtherSources:
    """Count the events of other sources that the run's selection covers.

    `seen` has the sources by service if all rows have been searched already. Then events are
    counted only if there is a source of no service.
    """
    left_out: list[str] = []
    obstacles: list[str] = []
    tenants = _tenants(servers)
    for service in servers.services:
        here = tenants[service.name]
        if seen is not None and not set(seen.get(service.name, ())) - here:
            continue
        for source, events in _counted(servers, service, here).items():
            known = ", ".join(f"{number:,} {status}" for status, number in sorted(events.items()))
            what = f"the outbox of {service.name} holds events of {source!r} ({known})"
            if source in service.other_sources:
                left_out.append(f"{what}, which takes no part in this")
            else:
                obstacles.append(
                    f"{what}, which is none of these services, so that they are not judged: name "
                    "it as the `source` of a service, or among `other_sources` if it takes no part"
                )
    return OtherSources(left_out=tuple(left_out), obstacles=tuple(obstacles))


def _tenants(servers: Servers) -> dict[str, set[str]]:
    """Return by service the names of all services whose rows are in the same tables."""
    places = {service.name: servers.location(service) for service in servers.services}
    return {
        name: {other for other, theirs in places.items() if theirs == place}
        for name, place in places.items()
    }


def _counted(
    servers: Servers, service: ServiceDatabase, tenants: Iterable[str]
) -> dict[str, Counter[str]]:
    read = incremental.read_of_outbox(servers.request.selection, service.name)
    rows = servers.rows(service, _COUNTED, names=listed(sorted(tenants)), condition=read.condition)
    found: dict[str, Counter[str]] = {}
    for source, status, events in rows:
        found.setdefault(source, Counter())[status] += events
    return dict(sorted(found.items()))
