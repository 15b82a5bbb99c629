"""Queries outboxes for the topics of types that groups receive only on some of their topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shieldtx.reconcile.expectations import Route
from shieldtx.reconcile.moved_types import SentBetween, moved_types, on_several_topics

from .jdbc import Databases
from .row_filters import array_of, inside_calendar, quoted

_SENT = """
    SELECT o.event_type, o.topic, {first} AS first, {last} AS last
    FROM {outbox} o
    WHERE o.source = {name} AND o.tx_kind = 'COMMIT' AND o.status = 'PROCESSED'
      AND o.event_type = ANY ({types})
    GROUP BY 1, 2"""


def types_moved(databases: Databases, routes: Iterable[Route]) -> Iterator[str]:
    """Yield sentences for types that are now sent on a topic from which a group has received none.

    An outbox is queried only if a group has received a type on just some of its topics.
    """
    services = databases.services
    followed = on_several_topics([service.member for service in services], routes)
    sent: dict[tuple[str, str, str], SentBetween] = {}
    for service in services:
        types = sorted({each.event_type for each in followed if each.upstream == service.name})
        if not types:
            continue
        rows = databases.rows(
            service,
            _SENT,
            first=inside_calendar("min(o.settled_at)"),
            last=inside_calendar("max(o.settled_at)"),
            name=quoted(service.name),
            types=array_of(types),
        )
        for row in rows:
            between = SentBetween(first=row.first, last=row.last)
            sent[service.name, row.event_type, row.topic] = between
    yield from moved_types(followed, sent, before=databases.lately)
