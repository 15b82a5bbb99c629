"""A service of one's own on each broker, and a producer that writes whatever it is told."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.ports.broker import Broker
from tests.support.service import SHARDS, Service

Make = Callable[..., Service]


@pytest.fixture
def make_service(postgres: EmbeddedPostgres, migrated: Callable[[int], str]) -> Iterator[Make]:
    """Make services by name and broker; each has a PostgreSQL database of its own."""
    made: list[tuple[Service, str]] = []

    def make(name: str, broker: Broker, **settings: Any) -> Service:
        database = f"test_{uuid.uuid4().hex}"
        postgres.create_database(database, template=migrated(settings.get("shards", SHARDS)))
        service = Service(name, postgres.url(database), broker, **settings)
        made.append((service, database))
        return service

    yield make
    for service, database in made:
        service.close()
        postgres.drop_database(database)
