"""One Spark session for the whole run, and two services whose databases it compares."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.jars import fetch_jdbc_driver
from tests.spark.planting import Service


@pytest.fixture(scope="session")
def jdbc_jar() -> Path:
    return fetch_jdbc_driver()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, jdbc_jar: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.Builder()
        .master("local[2]")
        .appName("tests")
        .config("spark.jars", str(jdbc_jar))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def orders(postgres: EmbeddedPostgres) -> Iterator[Service]:
    """The upstream, with its tables in the connection's own schema."""
    yield from _service(postgres, "orders", None)


@pytest.fixture
def stock(postgres: EmbeddedPostgres) -> Iterator[Service]:
    """The downstream, with its tables in a schema of theirs."""
    yield from _service(postgres, "stock", "shield")


def _service(postgres: EmbeddedPostgres, name: str, schema: str | None) -> Iterator[Service]:
    database = f"test_{uuid.uuid4().hex}"
    postgres.create_database(database)
    service = Service(name=name, url=postgres.url(database), schema=schema)
    yield service
    service.close()
    postgres.drop_database(database)


@pytest.fixture
def services(postgres: EmbeddedPostgres) -> Iterator[list[Service]]:
    """Three of them, one with its tables in a schema of theirs."""
    with ExitStack() as made:
        services = []
        for name, schema in (("orders", None), ("stock", "shield"), ("mail", None)):
            database = f"test_{uuid.uuid4().hex}"
            postgres.create_database(database)
            made.callback(postgres.drop_database, database)
            services.append(Service(name=name, url=postgres.url(database), schema=schema))
            made.callback(services[-1].close)
        yield services
