"""The database of the local transactions, separate from the database of the outbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.support.migrated_databases import MigratedDatabases


@pytest.fixture
def ledger(databases: MigratedDatabases) -> Iterator[Engine]:
    """A migrated database with a table of `entries`."""
    with databases.database(shards=4) as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE entries (what text)"))
        yield engine
        engine.dispose()
