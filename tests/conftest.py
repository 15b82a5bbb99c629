"""Fixtures of all tests: the real servers, once a run, and a fresh database for each test."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest
from hypothesis import settings
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.store.schema import Schema

pytest_plugins = ["tests.support.no_skips_in_ci", "tests.support.xdist_encoding"]

Eventually = Callable[..., None]

MEMORY = Path("/dev/shm")  # noqa: S108  what is in it has names of its own
GIBIBYTE = 2**30
KAFKA_THREADS = "kafka-io-"
"""How the names of the threads of kafka-python's clients begin, one each."""
OWN_THREADS = (KAFKA_THREADS, "shieldtx-")
"""Likewise of all that end with what has started them; the servers' threads stay for a run."""

# A busy machine is no defect.
settings.register_profile("shieldtx", deadline=None)
settings.load_profile("shieldtx")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Put the log back as it was: the command line sets up that of a whole process."""
    root, ours = logging.getLogger(), logging.getLogger("shieldtx")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def own_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The lines of shieldtx alone, to be counted: a client's thread may write one at any time."""
    own = logging.Filter("shieldtx")
    caplog.handler.addFilter(own)
    yield caplog
    caplog.handler.removeFilter(own)


@pytest.fixture(scope="module", autouse=True)
def threads_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread of a Kafka client or of shieldtx outlives its module.

    Such a client would look for its broker, and such a thread for its database, for ever.
    """
    before = threads_named(*OWN_THREADS)
    yield
    if not threads_named(*OWN_THREADS) <= before:
        # The thread of a worker that no test has closed ends with the worker.
        gc.collect()
    wait(
        lambda: threads_named(*OWN_THREADS) <= before,
        lambda: (
            f"the threads that {request.module.__name__} has started end: "
            f"{sorted(each.name for each in threads_named(*OWN_THREADS) - before)}"
        ),
    )


def threads_named(*beginnings: str) -> set[threading.Thread]:
    """The threads that run, of those whose names begin so."""
    return {each for each in threading.enumerate() if each.name.startswith(beginnings)}


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL for the whole run; it survives its own crashes, not the machine's."""
    # A small log is written over and over, and takes no memory for ever new files.
    settings = {
        "max_connections": "200",
        "max_wal_size": "256MB",
        "max_prepared_transactions": "20",
    }
    server = EmbeddedPostgres(fsync=False, settings=settings)
    start_in_memory(server)
    yield server
    server.close()


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """An Apache Kafka for the whole run: tests take topics and groups of their own."""
    broker = EmbeddedKafka()
    start_in_memory(broker)
    yield broker
    broker.close()


def start_in_memory(server: EmbeddedPostgres | EmbeddedKafka) -> None:
    """Start a server, with its files in memory if there is plenty.

    A database is some hundred files: on a busy disk they take ten times as long as in memory.
    """
    with pytest.MonkeyPatch.context() as patched:
        if (
            MEMORY.is_dir()
            and shutil.disk_usage(MEMORY).free > 4 * GIBIBYTE
            and psutil.virtual_memory().available > 8 * GIBIBYTE
        ):
            patched.setattr(tempfile, "tempdir", str(MEMORY))
        server.start()


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database that nobody else uses; dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def migrated(postgres: EmbeddedPostgres) -> Callable[[int], str]:
    """Name a migrated database of so many shards, to be copied: that takes a third of the time."""

    @cache
    def template(shards: int) -> str:
        name = f"migrated_{shards}"
        postgres.create_database(name)
        Schema(create_engine(postgres.url(name), poolclass=NullPool), shards=shards).upgrade()
        return name

    return template


@pytest.fixture
def migrated_url(postgres: EmbeddedPostgres, migrated: Callable[[int], str]) -> Iterator[str]:
    """The SQLAlchemy URL of such a database of a test's own, with the tables of four shards."""
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name, template=migrated(4))
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds: `wait`, for tests."""
    return wait


def wait(
    condition: Callable[[], bool], description: str | Callable[[], str], within: float = 15.0
) -> None:
    """Wait until a condition holds, and fail with its description when it does not in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            told = description if isinstance(description, str) else description()
            pytest.fail(f"not within {within} s: {told}")
        time.sleep(0.02)
