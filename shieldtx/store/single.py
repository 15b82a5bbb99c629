"""Single statements, which need no transaction around them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine

from shieldtx.store.dialects import dialect_of

SINGLE_ISOLATION: Final = "shieldtx_single_isolation"
"""An engine's option: the isolation level of `for_single_statements`."""


def for_single_statements(engine: Engine) -> Engine:
    """Return an engine each statement of which is a transaction by itself.

    Where the engine's sessions are known to be READ COMMITTED, there is no BEGIN and no COMMIT to
    wait for. Use its `begin()` all the same, not `connect()`: other engines need the commit.
    """
    options, dialect = engine.get_execution_options(), dialect_of(engine.dialect)
    level = options.get(SINGLE_ISOLATION, dialect.single_isolation)
    return engine.execution_options(isolation_level=level)
