"""The statements by which migrations query and take locks of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import Select, TextClause, bindparam, func, select, text

TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
"""The settings that limit the time of a statement or a transaction; older servers lack the last."""


def without_timeouts() -> TextClause:
    """Disable the timeouts that the server, the role or the URL set, for the transaction."""
    return text(
        "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN :timeouts"
    ).bindparams(bindparam("timeouts", TIMEOUTS, expanding=True))


def session_without_timeouts() -> TextClause:
    """Disable the timeouts for a session whose statements run outside of transactions."""
    return text(
        "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN :timeouts"
    ).bindparams(bindparam("timeouts", TIMEOUTS, expanding=True))


def lock_timeout(patience: timedelta, *, in_session: bool = False) -> Select[tuple[str]]:
    """Limit the wait for each lock, in the transaction or in the session."""
    milliseconds = max(1, int(patience.total_seconds() * 1000))
    return select(func.set_config("lock_timeout", f"{milliseconds}ms", not in_session))


def nothing() -> TextClause:
    """Make a transaction drop the snapshot of its last SELECT; SHOW takes no snapshot."""
    return text("SHOW lock_timeout")


def lock_for_changes(tables: Collection[str], schema: str | None) -> TextClause:
    """Lock vacuum and other migrations out of the tables; readers and writers continue.

    Only a wait for this lock ends an autovacuum; a short wait for an exclusive lock never does.
    """
    named = ", ".join(qualified(table, schema) for table in sorted(tables))
    return text(f"LOCK TABLE {named} IN SHARE UPDATE EXCLUSIVE MODE")


def oldest_holder(tables: Collection[str], schema: str | None) -> TextClause:
    """Select the oldest transaction that locks one of the tables: pid, table, name, state, age."""
    return text("""
        SELECT a.pid, c.relname, coalesce(nullif(a.application_name, ''), a.backend_type) AS name,
               coalesce(a.state, 'active') AS state,
               extract(epoch FROM clock_timestamp() - a.xact_start)::float AS age_s
        FROM pg_locks l
        JOIN pg_class c ON c.oid = l.relation
        JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND n.nspname = coalesce(:schema, current_schema()) AND c.relname IN :tables
        ORDER BY a.xact_start NULLS LAST LIMIT 1
    """).bindparams(
        bindparam("schema", schema), bindparam("tables", sorted(tables), expanding=True)
    )


def validity_of_index(name: str, schema: str | None) -> TextClause:
    """Select whether an index is valid; no row if there is no such index."""
    return text("""
        SELECT i.indisvalid FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = :name AND n.nspname = coalesce(:schema, current_schema())
    """).bindparams(name=name, schema=schema)


def validity_of_check(table: str, name: str, schema: str | None) -> TextClause:
    """Select whether a constraint is validated for all rows; no row if there is no constraint."""
    return text("""
        SELECT k.convalidated FROM pg_constraint k
        JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = :table AND k.conname = :name
          AND n.nspname = coalesce(:schema, current_schema())
    """).bindparams(table=table, name=name, schema=schema)


def replace_check(table: str, name: str, condition: str, schema: str | None) -> TextClause:
    """Replace the constraint of that name, without a check of existing rows."""
    return text(
        f"ALTER TABLE {qualified(table, schema)} DROP CONSTRAINT IF EXISTS {name}, "
        f"ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID"
    )


def validate(table: str, name: str, schema: str | None) -> TextClause:
    """Check the existing rows against a constraint; writers continue meanwhile."""
    return text(f"ALTER TABLE {qualified(table, schema)} VALIDATE CONSTRAINT {name}")


def qualified(table: str, schema: str | None) -> str:
    """Return the qualified name of a shieldtx table; schema names need only these quotes."""
    return f'"{schema}".{table}' if schema else table
