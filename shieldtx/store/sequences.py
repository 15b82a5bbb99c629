"""Whether the sequences of the tables are above the rows that are there.

The order of a key is that of `seq`. Logical replication and blue/green deployments carry rows, but
not the state of sequences: after a switch-over new events would be numbered below older ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Table

from shieldtx.errors import SchemaMismatch
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import sequences as sql
from shieldtx.store.tables import Tables


def check_sequences(connection: Connection, tables: Tables) -> None:
    """Raise SchemaMismatch, with the remedy, for sequences below rows that are there.

    The connection is READ COMMITTED: rows that are written meanwhile then cause no false alarm.
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
        # In this order: a concurrent writer has drawn its number before.
        highest = connection.scalar(sql.highest(table)) or 0
        sequence = connection.scalar(sql.sequence_of(table))
        following = connection.scalar(sql.next_value(sequence)) if sequence else None
        if following is not None and highest >= following:
            problem = f"the sequence of {table.fullname}.seq goes on at {following}"
            remedy = f"SELECT setval('{sequence}', {highest})"
            yield f"{problem}, but there are rows up to {highest}", remedy
