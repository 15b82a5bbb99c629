"""Inbox rows whose outbox rows were purged: counted by their database.

Inboxes keep rows for longer than outboxes do, so up to half of an inbox can be such rows. Such rows
are older than the horizon and exist on one side only, so each is TOO_OLD. Reading them would take
longer than reading all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Window

from .outbox_inbox import IS_ODD_DOWNSTREAM
from .row_filters import literal_time, quoted
from .server_checks import Servers

MOST: Final = 1_000
"""The number of the oldest events of an outbox, by id, that become part of a statement."""

_OLDEST = "SELECT event_id FROM {outbox} ORDER BY event_id LIMIT {most}"
# The id comes first, because it has an index, and lookups in other rows come last. The times of an
# event without an outbox row are those by which it is judged, see `compare.transforms`. An event
# older than the retention when it came may have been delayed: it is read.
_LEFT = """(i.source = {source}{low} AND least(i.event_time, i.received_at) < {horizon}
    AND NOT (i.received_at >= {horizon}
             AND i.event_time <= i.received_at - ({watermark} - {horizon}))
    AND greatest(i.received_at, i.settled_at) < {watermark}
    AND NOT (i.event_id = ANY (ARRAY[{ids}]::uuid[])) AND NOT {odd})"""
_COUNTED = """
    SELECT i.source, i.consumer_group, i.topic, i.event_type, count(*) AS events
    FROM {inbox} i WHERE {condition} GROUP BY 1, 2, 3, 4"""

Arrival = tuple[str, str, str, str]
"""The source of an event, the group that received it, its topic and its type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OldestEvents:
    """The lowest ids of an outbox; all its other ids are at least `before` (None: no others)."""

    ids: tuple[UUID, ...]
    before: UUID | None = None


def oldest_events(servers: Servers, service: ServiceDatabase) -> OldestEvents:
    """Return the lowest ids of an outbox: those of its oldest remaining events."""
    rows = servers.rows(service, _OLDEST, most=str(MOST + 1))
    ids = [row.event_id for row in rows]
    return OldestEvents(ids=tuple(ids[:MOST]), before=ids[MOST] if len(ids) > MOST else None)


def left_in_inbox(
    service: str, oldest: Mapping[str, OldestEvents], windows: Mapping[Stream, Window]
) -> str | None:
    """Return an SQL condition for inbox rows left of purged events; None: there can be none.

    `oldest`, by upstream, was read before the digests. So no digest that equals one of the outbox
    includes such a row: its event was no longer there by then.
    """
    upstreams = [
        _left_of(stream.upstream, oldest[stream.upstream], window.horizon, window.watermark)
        for stream, window in windows.items()
        if stream.kind is TxKind.COMMIT and stream.downstream == service
        if window.horizon is not None and window.watermark is not None
    ]
    return f"({' OR '.join(upstreams)})" if upstreams else None


def counted(servers: Servers, service: ServiceDatabase, condition: str) -> Mapping[Arrival, int]:
    """Return the number of an inbox's rows for which the condition is true."""
    rows = servers.rows(service, _COUNTED.replace("{condition}", condition))
    return {(r.source, r.consumer_group, r.topic, r.event_type): r.events for r in rows}


def _left_of(upstream: str, oldest: OldestEvents, horizon: datetime, watermark: datetime) -> str:
    # Later formatting must leave braces in the name unchanged.
    source = quoted(upstream).replace("{", "{{").replace("}", "}}")
    return _LEFT.format(
        source=source,
        low="" if oldest.before is None else f" AND i.event_id < '{oldest.before}'",
        horizon=literal_time(horizon),
        watermark=literal_time(watermark),
        ids=_listed(oldest.ids),
        odd=IS_ODD_DOWNSTREAM,
    )


def _listed(ids: Iterable[UUID]) -> str:
    return ", ".join(f"'{one}'" for one in ids)
