"""Services on databases of their own, joined by an in-memory broker whose faults a test decides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.service import SHARDS, Service, Wire
from tests.support.write_side_shop import Shop


@pytest.fixture
def wire() -> Wire:
    return Wire(MemoryBroker())


@pytest.fixture
def make_service(
    postgres: EmbeddedPostgres, migrated: Callable[[int], str], wire: Wire
) -> Iterator[Callable[..., Service]]:
    """Make services by name; each has a PostgreSQL database of its own."""
    made: list[tuple[Service, str]] = []

    def make(name: str, **settings: Any) -> Service:
        database = f"test_{uuid.uuid4().hex}"
        postgres.create_database(database, template=migrated(settings.get("shards", SHARDS)))
        service = Service(name, postgres.url(database), wire, **settings)
        made.append((service, database))
        return service

    yield make
    for service, database in made:
        service.close()
        postgres.drop_database(database)


@pytest.fixture(scope="session")
def shop_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A migrated database that the tests of the write side share, one after the other."""
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name)
    Shop(postgres.url(name)).close()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def postgres_shop(shop_url: str) -> Iterator[Shop]:
    """A service whose own code writes events, with empty tables."""
    opened = Shop(shop_url, migrate=False)
    opened.clear()
    yield opened
    opened.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Such a service on each database that shieldtx knows."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_shop")
    else:
        opened = Shop(f"sqlite:///{tmp_path}/shop.db")
        yield opened
        opened.close()
