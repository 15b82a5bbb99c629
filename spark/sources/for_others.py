"""Events for services that take no part in this: no group is to receive them, but they may fail."""

from __future__ import annotations

from collections.abc import Iterator

from . import incremental
from .row_filters import listed, quoted
from .server_checks import Servers

_FAILED = """
    SELECT o.topic, o.status, count(*) AS events FROM {outbox} o
    WHERE o.source = {name} AND o.topic IN ({topics}) AND {condition}
    GROUP BY 1, 2 ORDER BY 1, 2"""


def failed_for_others(servers: Servers) -> tuple[str, ...]:
    """Say in sentences which events on topics for others wait for a person.

    No group is judged by them, so that no verdict names them.
    """
    return tuple(_sentences(servers))


def _sentences(servers: Servers) -> Iterator[str]:
    for service in servers.services:
        if not service.others:
            continue
        rows = servers.rows(
            service,
            _FAILED,
            name=quoted(service.name),
            topics=listed(service.others),
            condition=incremental.OF_OPERATORS_IN_OUTBOX,
        )
        for topic, status, events in rows:
            yield (
                f"{events:,} events of {service.name} on {topic}, a topic for others, are {status} "
                "and wait for a person: see `shieldtx dead list` of that service"
            )
