"""Changes of large tables with concurrent writers, which a revision lists in `ONLINE`.

A revision's `upgrade` runs in its own transaction and takes its locks briefly. Changes that read a
large table come afterwards, outside of any transaction, and block no writer. The next upgrade
repeats an interrupted change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from alembic.operations import Operations
from sqlalchemy import Connection, Select, func, inspect, select, text

from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.store.statements import locks, offline

_NAMED = 3
"""The most rows that an error names."""


class OnlineChange(Protocol):
    """A change that needs no transaction and can be repeated."""

    @property
    def name(self) -> str:
        """The name of the index or constraint."""
        ...

    @property
    def table(self) -> str:
        """The table that is read."""
        ...

    def is_done(self, connection: Connection, schema: str | None) -> bool:
        """Whether the change is complete."""
        ...

    def make(self, op: Operations, schema: str | None, *, online: bool) -> None:
        """Make the change: in autocommit with concurrent writers, or in the open transaction."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LargeIndex:
    """An index of a large table, built with CREATE INDEX CONCURRENTLY."""

    name: str
    table: str
    columns: tuple[str, ...]
    where: str | None = None
    sqlite_where: str | None = None
    """The predicate for SQLite, if it differs."""
    unique: bool = False
    using: str = "btree"
    since: int = 0
    """The first major version of PostgreSQL that gets the index."""

    def is_done(self, connection: Connection, schema: str | None) -> bool:
        """Whether the index exists and is valid, or this server's version gets no such index."""
        if connection.dialect.name != "postgresql":
            return inspect(connection).has_index(self.table, self.name)
        if (connection.dialect.server_version_info or ()) < (self.since,):
            return True
        found = connection.execute(locks.validity_of_index(self.name, schema)).scalar()
        return bool(found)

    def make(self, op: Operations, schema: str | None, *, online: bool) -> None:
        """Build the index, and replace the rest of an interrupted build."""
        if op.get_context().as_sql:
            self._write(op, schema, online=online)
        elif not self.is_done(op.get_bind(), schema):
            if op.get_context().dialect.name == "postgresql":
                self._drop(op, schema, online=online)
            self._create(op, schema, online=online)

    def _write(self, op: Operations, schema: str | None, *, online: bool) -> None:
        """Write the SQL, which may run on a server of an unknown version."""
        server = op.get_context().dialect.server_version_info
        if server is not None and server < (self.since,):
            return
        if self.since and server is None and online:
            raise ConfigurationError(
                f"the index {self.name} exists from PostgreSQL {self.since} on: name the major "
                "version of the server with --server-version"
            )
        if online:
            self._drop(op, schema, online=True)
        if self.since and server is None:
            op.execute(offline.from_server(self.since, self._definition(schema)))
        else:
            self._create(op, schema, online=online)

    def _definition(self, schema: str | None) -> str:
        unique = "UNIQUE " if self.unique else ""
        where = f" WHERE {self.where}" if self.where else ""
        table = locks.qualified(self.table, schema)
        columns = ", ".join(self.columns)
        return f"CREATE {unique}INDEX {self.name} ON {table} USING {self.using} ({columns}){where}"

    def _drop(self, op: Operations, schema: str | None, *, online: bool) -> None:
        op.drop_index(
            self.name, self.table, schema=schema, if_exists=True, postgresql_concurrently=online
        )

    def _create(self, op: Operations, schema: str | None, *, online: bool) -> None:
        more: dict[str, Any] = {}
        if self.where:
            more["postgresql_where"] = text(self.where)
            more["sqlite_where"] = text(self.sqlite_where or self.where)
        op.create_index(
            self.name,
            self.table,
            list(self.columns),
            unique=self.unique,
            schema=schema,
            postgresql_using=self.using,
            postgresql_concurrently=online,
            **more,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """The check of the rows that existed before a NOT VALID constraint, as by `replace_check`."""

    name: str
    table: str

    def is_done(self, connection: Connection, schema: str | None) -> bool:
        """Whether the constraint is validated for all rows."""
        if connection.dialect.name != "postgresql":
            return True
        found = connection.execute(locks.validity_of_check(self.table, self.name, schema))
        return bool(found.scalar())

    def make(self, op: Operations, schema: str | None, *, online: bool) -> None:  # noqa: ARG002  one signature for all
        """Read the table; writers continue meanwhile."""
        if op.get_context().dialect.name == "postgresql":
            op.execute(locks.validate(self.table, self.name, schema))


def replace_check(
    op: Operations, table: str, name: str, condition: str, *, schema: str | None
) -> None:
    """Add a CHECK constraint to a table, or replace the constraint of that name.

    In PostgreSQL the constraint checks new rows: list a `Validation` in `ONLINE` for existing rows.
    SQLite cannot alter constraints, so the table is copied there.
    """
    if op.get_context().dialect.name == "postgresql":
        op.execute(locks.replace_check(table, name, condition, schema))
    else:
        _copy_with_check(op, table, name, condition)


def refuse_rows(
    connection: Connection,
    rows: Select[Any],
    *,
    what: str,
    remedy: str,
    loss: str = "which no command could list or settle afterwards",
) -> None:
    """Refuse a downgrade that would lose rows, or leave rows that the older release cannot handle.

    Raises SchemaMismatch with the number of `rows`, and with the columns of the first rows as
    names.
    """
    found = ["/".join(map(str, row)) for row in connection.execute(rows.limit(_NAMED))]
    if found:
        count = connection.scalar(select(func.count()).select_from(rows.subquery()))
        more = " and others" if count and count > _NAMED else ""
        raise SchemaMismatch(
            f"the tables cannot be taken back while there are {what} ({count}), {loss}: "
            f"{', '.join(found)}{more}. {remedy}"
        )


def _copy_with_check(op: Operations, table: str, name: str, condition: str) -> None:
    connection = op.get_bind()
    found = connection.execute(
        text("SELECT name, sql FROM sqlite_master WHERE tbl_name = :table AND sql > ''"),
        {"table": table},
    )
    made = {str(name): str(definition) for name, definition in found}
    definition = _without_check(made.pop(table), name).rstrip().removesuffix(")").rstrip()
    for statement in (
        f"ALTER TABLE {table} RENAME TO {table}_before",
        f"{definition}, \n\tCONSTRAINT {name} CHECK ({condition})\n)",
        f"INSERT INTO {table} SELECT * FROM {table}_before",  # noqa: S608  our own names
        f"DROP TABLE {table}_before",
        *made.values(),
    ):
        connection.exec_driver_sql(statement)


def _without_check(definition: str, name: str) -> str:
    """Remove a CHECK constraint from a CREATE TABLE."""
    found = re.search(rf",\s*CONSTRAINT {name} CHECK \(", definition)
    if found is None:
        return definition
    depth, end = 1, found.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(definition[end], 0)
        end += 1
    return definition[: found.start()] + definition[end:]
