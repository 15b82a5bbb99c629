"""Fixtures: one Spark session for the whole run, and two services whose databases it compares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shieldtx.embedded.jars import fetch_jdbc_driver
from tests.spark.nights import Nights
from tests.spark.planting import SHARDS, Service
from tests.spark.session import compiling, interpreting, spark_session
from tests.support.migrated_databases import MigratedDatabases


@pytest.fixture(scope="session")
def jdbc_jar() -> Path:
    return fetch_jdbc_driver()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let Spark interpret its plans. Whole runs are tested as in production, compiled."""
    with interpreting(spark):
        yield


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Let Spark compile its plans, as in a run."""
    with compiling(spark):
        yield


@pytest.fixture
def orders(databases: MigratedDatabases) -> Iterator[Service]:
    """Return the upstream, with its tables in the connection's own schema."""
    with _service(databases, "orders", None) as service:
        yield service


@pytest.fixture
def stock(databases: MigratedDatabases) -> Iterator[Service]:
    """Return the downstream, with its tables in a schema of their own."""
    with _service(databases, "stock", "shield") as service:
        yield service


@pytest.fixture
def services(databases: MigratedDatabases) -> Iterator[list[Service]]:
    """Return three services, one with its tables in a schema of their own."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(_service(databases, name, schema))
            for name, schema in (("orders", None), ("stock", "shield"), ("mail", None))
        ]


@pytest.fixture
def nights(spark: SparkSession, tmp_path: Path) -> Nights:
    """Return stored runs, each of which starts where the last good run ended."""
    return Nights(spark, tmp_path)


@contextmanager
def _service(databases: MigratedDatabases, name: str, schema: str | None) -> Iterator[Service]:
    with databases.database(SHARDS, schema) as url:
        service = Service(name=name, url=url, schema=schema)
        yield service
        service.close()
