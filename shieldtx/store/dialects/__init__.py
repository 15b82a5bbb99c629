"""The differences between the databases: the contract in `protocol`, and a module per database."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Dialect as SqlaDialect
from sqlalchemy import Engine

from shieldtx.errors import ConfigurationError
from shieldtx.store.dialects.postgresql import PostgresDialect
from shieldtx.store.dialects.protocol import LOCKED_AT, OF_MARK, TRANSACTION, Dialect
from shieldtx.store.dialects.sqlite import SqliteDialect

__all__ = [
    "Dialect",
    "PostgresDialect",
    "SqliteDialect",
    "is_known",
    "dialect_of",
    "dialect_named",
    "autocommit_engine",
    "AUTOCOMMIT_ISOLATION",
    "LOCKED_AT",
    "OF_MARK",
    "TRANSACTION",
]

AUTOCOMMIT_ISOLATION: Final = "shieldtx_autocommit_isolation"
"""An option of an engine: the isolation level of its `autocommit_engine`."""

_KNOWN: dict[str, Dialect] = {"postgresql": PostgresDialect(), "sqlite": SqliteDialect()}


def is_known(dialect: SqlaDialect) -> bool:
    """Whether shieldtx has a dialect for a database."""
    return dialect.name in _KNOWN


def dialect_of(dialect: SqlaDialect) -> Dialect:
    """Return the dialect of a database; raises ConfigurationError for an unknown one."""
    return dialect_named(dialect.name)


def dialect_named(name: str) -> Dialect:
    """Return the dialect of a database by SQLAlchemy's name; raises like `dialect_of`."""
    known = _KNOWN.get(name)
    if known is None:
        raise ConfigurationError(
            f"shieldtx has no dialect for {name!r}: use one of {', '.join(sorted(_KNOWN))}"
        )
    return known


def autocommit_engine(engine: Engine) -> Engine:
    """Return an engine on which each statement is its own transaction.

    If the engine's sessions are known to be READ COMMITTED, statements need no BEGIN and no COMMIT.
    Always use `begin()`, not `connect()`: other engines need the commit.
    """
    options, dialect = engine.get_execution_options(), dialect_of(engine.dialect)
    level = options.get(AUTOCOMMIT_ISOLATION, dialect.autocommit_isolation)
    return engine.execution_options(isolation_level=level)
