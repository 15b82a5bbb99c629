"""The check that the sequences of the tables are above the existing rows.

`seq` orders the events of a key. Logical replication and blue/green deployments copy rows, but not
the state of sequences: after a switch-over new events would get numbers below older events.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Table

from shieldtx.errors import SchemaMismatch
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import sequences as sql
from shieldtx.store.tables import Tables


def check_sequences(connection: Connection, tables: Tables) -> None:
    """Raise SchemaMismatch, with the remedy, for sequences below existing rows.

    The connection must be READ COMMITTED, so that concurrent writes cause no false alarm.
    """
    if not dialect_of(connection.dialect).has_sequences:
        return
    problems = list(_problems(connection, (tables.outbox, tables.inbox)))
    if problems:
        remedies = "; ".join(remedy for _, remedy in problems)
        raise SchemaMismatch(
            f"{' and '.join(problem for problem, _ in problems)}: events would leave their keys' "
            "order. A switch-over does not carry sequences. Stop what writes events, consumes and "
            f"relays, run `{remedies}`, and start again"
        )


def _problems(connection: Connection, of: tuple[Table, ...]) -> Iterator[tuple[str, str]]:
    for table in of:
        # In this order: a concurrent writer draws its number before its row is visible.
        highest = connection.scalar(sql.highest(table)) or 0
        sequence = connection.scalar(sql.sequence_of(table))
        following = connection.scalar(sql.next_value(sequence)) if sequence else None
        if following is not None and highest >= following:
            problem = f"the sequence of {table.fullname}.seq goes on at {following}"
            remedy = f"SELECT setval('{sequence}', {highest})"
            yield f"{problem}, but there are rows up to {highest}", remedy
