"""The keys of the rows on the page, and their payloads if requested."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from shieldtx.reconcile.findings import KEY_LETTERS, PAYLOAD_LETTERS, TOPICS, FoundRow

from ..sources.jdbc import Databases
from ..sources.row_filters import by_ids

_HASH_LETTERS = 12
_OF_OUTBOX = """
    SELECT event_id::text AS event_id, {columns} FROM {outbox} WHERE {condition}"""
_OF_INBOX = _OF_OUTBOX.replace("{outbox}", "{inbox}")
_SHOWN = ", ".join(
    (
        *(f"left({name}, {KEY_LETTERS}) AS {name}" for name in ("key", "biz_key")),
        f"left(payload, {PAYLOAD_LETTERS}) AS payload",
        "length(payload) AS letters",
    )
)
# The databases compute the hashes: no masked key leaves them.
_MASKED = ", ".join(
    f"'sha256:' || left(encode(sha256(convert_to({name}, 'UTF8')), 'hex'), {_HASH_LETTERS}) "
    f"AS {name}"
    for name in ("key", "biz_key")
)


def with_samples(
    databases: Databases, rows: Iterable[FoundRow], *, show: bool
) -> tuple[FoundRow, ...]:
    """Add what the upstream wrote, or else what the downstream received.

    With `show`, the first characters of the keys and of the payload are added, and the length of
    the payload; otherwise only the start of the SHA-256 of each key.
    """
    given = tuple(rows)
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in given:
        asked[_place(row)].add(row.event_id)
    columns = _SHOWN if show else _MASKED
    samples: dict[tuple[str, str, str], Row[*tuple[Any, ...]]] = {}
    for service in databases.services:
        for query in (_OF_OUTBOX, _OF_INBOX):
            for condition in by_ids(asked[service.name, query]).parts or ():
                for found in databases.rows(service, query, condition=condition, columns=columns):
                    samples[service.name, query, found.event_id] = found
    return tuple(
        _sampled(row, samples.get((*_place(row), row.event_id)), show=show) for row in given
    )


def _sampled(row: FoundRow, found: Row[*tuple[Any, ...]] | None, *, show: bool) -> FoundRow:
    if found is None:
        return row
    keyed = replace(row, key=found.key, biz_key=found.biz_key)
    return replace(keyed, payload=found.payload, payload_letters=found.letters) if show else keyed


def _place(row: FoundRow) -> tuple[str, str]:
    """Return the service that has the row of the event, and the query for it."""
    if row.upstream_status is None and row.pair.downstream != TOPICS:
        return row.pair.downstream, _OF_INBOX
    return row.pair.upstream, _OF_OUTBOX
