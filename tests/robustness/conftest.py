"""A service of the test's own on each broker, and a producer that writes arbitrary records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from shieldtx.ports.broker import Broker
from tests.support.migrated_databases import MigratedDatabases
from tests.support.service import SHARDS, Service

Make = Callable[..., Service]


@pytest.fixture
def make_service(databases: MigratedDatabases) -> Iterator[Make]:
    """Create services by name and broker; each has a PostgreSQL database of its own."""
    with ExitStack() as closing:

        def make(name: str, broker: Broker, **settings: Any) -> Service:
            shards, schema = settings.get("shards", SHARDS), settings.get("database_schema")
            url = closing.enter_context(databases.database(shards, schema))
            service = Service(name, url, broker, migrated=True, **settings)
            closing.callback(service.close)
            return service

        yield make
