"""Services on databases of their own, joined by an in-memory broker whose faults a test decides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shieldtx.brokers.memory import MemoryBroker
from shieldtx.embedded import EmbeddedPostgres
from tests.services import Service, Wire


@pytest.fixture
def wire() -> Wire:
    return Wire(MemoryBroker())


@pytest.fixture
def make_service(postgres: EmbeddedPostgres, wire: Wire) -> Iterator[Callable[..., Service]]:
    """Make services by name; each has a PostgreSQL database of its own."""
    made: list[tuple[Service, str]] = []

    def make(name: str, **settings: Any) -> Service:
        database = f"test_{uuid.uuid4().hex}"
        postgres.create_database(database)
        service = Service(name, postgres.url(database), wire, **settings)
        made.append((service, database))
        return service

    yield make
    for service, database in made:
        service.close()
        postgres.drop_database(database)
