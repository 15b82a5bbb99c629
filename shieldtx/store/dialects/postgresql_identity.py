"""The identity of the PostgreSQL table that a connection reaches by a name."""

from __future__ import annotations

from sqlalchemy import Connection, Table, text

_TABLE = text(
    """
    SELECT coalesce(to_regclass(:name)::oid::bigint, 0), current_database()::text,
           has_column_privilege('pg_catalog.pg_database', 'oid', 'SELECT')
           AND has_column_privilege('pg_catalog.pg_database', 'datname', 'SELECT'),
           coalesce(has_function_privilege(to_regprocedure('pg_control_system()'), 'EXECUTE'),
                    false),
           has_function_privilege('pg_postmaster_start_time()', 'EXECUTE')
    """
)
_FACTS = (
    text("SELECT oid::bigint FROM pg_database WHERE datname = current_database()"),
    text("SELECT system_identifier FROM pg_control_system()"),
    # A copy of a server has the same numbers, but its own time of start.
    text("SELECT extract(epoch FROM pg_postmaster_start_time())"),
)


def identity_of_table(connection: Connection, table: Table) -> tuple[object, ...]:
    """Return the number of a table, the name and number of its database, and facts on the server.

    The server's address is not among them: a pooler has another. A missing table has the number 0.
    A fact that the role may not read is None, as its statement would abort the transaction.
    """
    name = _qualified(connection, table)
    table_id, database, *rights = connection.execute(_TABLE, {"name": name}).one()
    pairs = zip(_FACTS, rights, strict=True)
    return (table_id, database, *(connection.scalar(fact) if may else None for fact, may in pairs))


def _qualified(connection: Connection, table: Table) -> str:
    """Return the name by which statements of the connection find the table."""
    quoted = connection.dialect.identifier_preparer
    # Like statements of the connection, with its `schema_translate_map`.
    schema = connection.schema_for_object(table)
    return ".".join([*([quoted.quote_schema(schema)] if schema else []), quoted.quote(table.name)])
