"""Fixtures with the stores of a real database, to compare with those in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from shieldtx.store import retention
from tests.support.migrated_databases import MigratedDatabases
from tests.verification.simulation.sql_stores import SHARDS, SqlStores, open_postgres, open_sqlite


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def sql(request: pytest.FixtureRequest) -> Iterator[SqlStores]:
    with ExitStack() as closing:
        if request.param == "sqlite":
            made = open_sqlite()
        else:
            databases: MigratedDatabases = request.getfixturevalue("databases")
            made = open_postgres(closing.enter_context(databases.database(shards=SHARDS)))
        closing.callback(made.close)
        patched = closing.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(retention, "time", SimpleNamespace(time=lambda: made.clock.now))
        yield made
