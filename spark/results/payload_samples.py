"""The payloads of the few rows that the page shows, where it was asked to show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from shieldtx.reconcile.findings import TOPICS, FoundRow

from ..sources.jdbc import Databases
from ..sources.row_filters import by_ids

_OF_OUTBOX = "SELECT event_id::text AS event_id, payload FROM {outbox} WHERE {condition}"
_OF_INBOX = "SELECT event_id::text AS event_id, payload FROM {inbox} WHERE {condition}"


def with_payloads(databases: Databases, rows: Iterable[FoundRow]) -> tuple[FoundRow, ...]:
    """Add the payload that the upstream wrote, or that the downstream received if it is all."""
    given = tuple(rows)
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in given:
        asked[_place(row)].add(row.event_id)
    payloads: dict[tuple[str, str, str], str] = {}
    for service in databases.services:
        for query in (_OF_OUTBOX, _OF_INBOX):
            for condition in by_ids(asked[service.name, query]).parts or ():
                for found in databases.rows(service, query, condition=condition):
                    payloads[service.name, query, found.event_id] = found.payload
    return tuple(replace(row, payload=payloads.get((*_place(row), row.event_id))) for row in given)


def _place(row: FoundRow) -> tuple[str, str]:
    """Return which service has the payload, and how to ask for it."""
    if row.upstream_status is None and row.pair.downstream != TOPICS:
        return row.pair.downstream, _OF_INBOX
    return row.pair.upstream, _OF_OUTBOX
