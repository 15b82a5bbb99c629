"""The payloads of the rows on the page, if requested."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from shieldtx.reconcile.findings import PAYLOAD_LETTERS, TOPICS, FoundRow

from ..sources.jdbc import Databases
from ..sources.row_filters import by_ids

_OF_OUTBOX = """
    SELECT event_id::text AS event_id, left(payload, {letters}) AS payload,
           length(payload) AS letters
    FROM {outbox} WHERE {condition}"""
_OF_INBOX = _OF_OUTBOX.replace("{outbox}", "{inbox}")


def with_payloads(databases: Databases, rows: Iterable[FoundRow]) -> tuple[FoundRow, ...]:
    """Add the payload that the upstream wrote, or else the payload that the downstream received.

    Only the first characters and the length are added.
    """
    given = tuple(rows)
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in given:
        asked[_place(row)].add(row.event_id)
    letters = str(PAYLOAD_LETTERS)
    payloads: dict[tuple[str, str, str], tuple[str, int]] = {}
    for service in databases.services:
        for query in (_OF_OUTBOX, _OF_INBOX):
            for condition in by_ids(asked[service.name, query]).parts or ():
                for found in databases.rows(service, query, condition=condition, letters=letters):
                    key = (service.name, query, found.event_id)
                    payloads[key] = (found.payload, found.letters)
    return tuple(_shown(row, payloads.get((*_place(row), row.event_id))) for row in given)


def _shown(row: FoundRow, found: tuple[str, int] | None) -> FoundRow:
    if found is None:
        return row
    payload, letters = found
    return replace(row, payload=payload, payload_letters=letters)


def _place(row: FoundRow) -> tuple[str, str]:
    """Return the service that has the payload, and the query for it."""
    if row.upstream_status is None and row.pair.downstream != TOPICS:
        return row.pair.downstream, _OF_INBOX
    return row.pair.upstream, _OF_OUTBOX
