"""Fixtures of all tests: the real servers, once per run, and a fresh database for each test."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.logs import PlainFormatter
from tests.support.migrated_databases import MigratedDatabases

pytest_plugins = [
    "tests.support.stages",
    "tests.support.no_skips_in_ci",
    "tests.support.xdist_encoding",
    "tests.support.memory",
    "tests.support.shared_servers",
    "tests.support.work_units",
]

Eventually = Callable[..., None]

KAFKA_THREADS = "kafka-io-"
"""The name prefix of kafka-python's client threads; each client has one thread."""
OWN_THREADS = (KAFKA_THREADS, "shieldtx-")
"""Name prefixes of all threads that end with their owner; the servers' threads stay for a run."""

LOGGERS = (None, "shieldtx", "kafka", "apscheduler", "alembic")
"""Loggers whose levels the command line or a worker changes; None is the root."""

# No deadline: on a busy machine a slow example is not a defect.
settings.register_profile("shieldtx", deadline=None)
settings.load_profile("shieldtx")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have `caplog.text` and the reports of failures show the fields of log records."""
    if plugin := session.config.pluginmanager.get_plugin("logging-plugin"):
        for handler in (plugin.caplog_handler, plugin.report_handler):
            handler.setFormatter(PlainFormatter(tracebacks=True))


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, which finds nothing and doubles the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Restore the logging configuration: the command line changes that of the whole process."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {logger: logger.level for logger in map(logging.getLogger, LOGGERS)}
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    for logger, level in levels.items():
        logger.setLevel(level)


@pytest.fixture
def own_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture shieldtx's lines alone, so that tests can count them: clients log at any time."""
    own = logging.Filter("shieldtx")
    caplog.handler.addFilter(own)
    yield caplog
    caplog.handler.removeFilter(own)


@pytest.fixture(scope="module", autouse=True)
def threads_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread of a Kafka client or of shieldtx outlives its module.

    A leaked client would look for its broker forever, and a leaked thread for its database.
    """
    before = threads_named(*OWN_THREADS)
    yield
    if not threads_named(*OWN_THREADS) <= before:
        # The thread of a worker that no test has closed ends with the worker object.
        gc.collect()
    wait(
        lambda: threads_named(*OWN_THREADS) <= before,
        lambda: (
            f"the threads that {request.module.__name__} has started end: "
            f"{sorted(each.name for each in threads_named(*OWN_THREADS) - before)}"
        ),
    )


def threads_named(*beginnings: str) -> set[threading.Thread]:
    """Return the running threads whose names begin so."""
    return {each for each in threading.enumerate() if each.name.startswith(beginnings)}


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres) -> MigratedDatabases:
    """Creates databases with shieldtx's tables, for tests that need several."""
    return MigratedDatabases(postgres)


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database that only this test uses; dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def migrated_url(databases: MigratedDatabases) -> Iterator[str]:
    """The SQLAlchemy URL of a migrated database of the test's own, with four shards."""
    with databases.database(shards=4) as url:
        yield url


@pytest.fixture(scope="session")
def undisturbed_databases(undisturbed_postgres: EmbeddedPostgres) -> MigratedDatabases:
    """Databases on a server without any other sessions."""
    return MigratedDatabases(undisturbed_postgres)


@pytest.fixture
def undisturbed_url(undisturbed_databases: MigratedDatabases) -> Iterator[str]:
    """As `migrated_url`, for tests that a transaction in another test's database would disturb."""
    with undisturbed_databases.database(shards=4) as url:
        yield url


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds: `wait`, for tests."""
    return wait


def wait(
    condition: Callable[[], bool], description: str | Callable[[], str], within: float = 15.0
) -> None:
    """Wait until a condition holds; fail with its description when it does not hold in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            told = description if isinstance(description, str) else description()
            pytest.fail(f"not within {within} s: {told}")
        time.sleep(0.02)
