"""Which of all PostgreSQL tables a connection reaches by a name."""

from __future__ import annotations

from sqlalchemy import Connection, Table, text

_TABLE = text(
    """
    SELECT coalesce(to_regclass(:name)::oid::bigint, 0),
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
           coalesce(has_function_privilege(to_regprocedure('pg_control_system()'), 'EXECUTE'),
                    false)
    """
)
_SERVER = text("SELECT system_identifier FROM pg_control_system()")


def identity_of_table(connection: Connection, table: Table) -> tuple[int | None, ...]:
    """Return the numbers of a table, its database and its server.

    Not their names and addresses: a pooler has others, and two servers may have a database of the
    same name. A table that is not there has the number 0. The server's is None for a role from
    which the right to read it was taken: the statement would abort the transaction.
    """
    name = _qualified(connection, table)
    table_id, database_id, may_read_server = connection.execute(_TABLE, {"name": name}).one()
    server_id = connection.scalar(_SERVER) if may_read_server else None
    return table_id, database_id, server_id


def _qualified(connection: Connection, table: Table) -> str:
    """Return the name by which statements of the connection find the table."""
    quoted = connection.dialect.identifier_preparer
    # With the connection's `schema_translate_map`, as its statements are.
    schema = connection.schema_for_object(table)
    return ".".join([*([quoted.quote_schema(schema)] if schema else []), quoted.quote(table.name)])
