"""Rows that prove that a database was not restored to an earlier time."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from tests.verification.oracle.facts import Row, Rows

Table = tuple[str, bool]
"""A service, and whether the table is its outbox."""
Proof = frozenset[tuple[Table, UUID, float | None]]
"""For each table: events that it has, and when they were settled; None: at any time."""


def proof_of(rows: Rows) -> Proof:
    """Return for each table its newest event, its latest open row, and its last settlement."""
    newest: dict[Table, UUID] = {}
    opened: dict[Table, tuple[int, UUID]] = {}
    settled: dict[Table, tuple[float, UUID]] = {}
    for row in _all(rows):
        table, event_id = _table(row), row["event_id"]
        newest[table] = max(event_id, newest.get(table, event_id))
        if row["settled_at"] is None:
            latest = row["seq"], event_id
            opened[table] = max(latest, opened.get(table, latest))
        else:
            last = row["settled_at"], event_id
            settled[table] = max(last, settled.get(table, last))
    return frozenset(
        [
            *((table, event_id, None) for table, event_id in newest.items()),
            *((table, event_id, None) for table, (_, event_id) in opened.items()),
            *((table, event_id, at) for table, (at, event_id) in settled.items()),
        ]
    )


def lacking(proof: Proof, rows: Rows) -> set[str]:
    """Return the services whose tables do not have all of it."""
    there = {
        (_table(row), row["event_id"], at) for row in _all(rows) for at in (None, row["settled_at"])
    }
    return {service for (service, _), *_ in proof - there}


def _all(rows: Rows) -> Iterator[Row]:
    yield from rows.outbox
    yield from rows.inbox


def _table(row: Row) -> Table:
    return row["service"], row["group"] is None
