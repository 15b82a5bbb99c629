"""Fixtures of all tests: the real servers, once a run, and a fresh database for each test."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres

pytest_plugins = ["tests.left_out", "tests.reports"]

Eventually = Callable[..., None]

# A busy machine is no defect.
settings.register_profile("shieldtx", deadline=None)
settings.load_profile("shieldtx")


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL for the whole run; it survives its own crashes, not the machine's."""
    with EmbeddedPostgres(fsync=False, settings={"max_connections": "200"}) as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """An Apache Kafka for the whole run: tests take topics and groups of their own."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database that nobody else uses; dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds, and fail with its description when it does not in time."""

    def wait(condition: Callable[[], bool], description: str, within: float = 15.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within} s: {description}")
            time.sleep(0.02)

    return wait
