"""Single statements, which need no transaction around them."""

from __future__ import annotations

from sqlalchemy import Engine


def for_single_statements(engine: Engine) -> Engine:
    """Return an engine each statement of which is a transaction by itself.

    There is no BEGIN and no COMMIT to wait for. Use its `begin()` all the same, not `connect()`: an
    engine whose host sends BEGIN by hand, as SQLAlchemy advises for SQLite, needs the commit.
    """
    return engine.execution_options(isolation_level="AUTOCOMMIT")
