"""One Spark session for the whole run, and two services whose databases it compares."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shieldtx.embedded.jars import fetch_jdbc_driver
from tests.spark.nights import Nights
from tests.spark.planting import SHARDS, Service
from tests.support.migrated_databases import MigratedDatabases
from tests.verification.oracle.setting import NAMES


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


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Spark interprets its plans: of a few rows, compiling them takes most of the time.

    Whole runs are tested as they are, compiled.
    """
    with _compiling(spark, whole_stage="false", factory="NO_CODEGEN"):
        yield


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Spark compiles its plans, as in a run."""
    with _compiling(spark, whole_stage="true", factory="FALLBACK"):
        yield


@contextmanager
def _compiling(spark: SparkSession, *, whole_stage: str, factory: str) -> Iterator[None]:
    wanted = {"spark.sql.codegen.wholeStage": whole_stage, "spark.sql.codegen.factoryMode": factory}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def orders(databases: MigratedDatabases) -> Iterator[Service]:
    """The upstream, with its tables in the connection's own schema."""
    with _service(databases, "orders", None) as service:
        yield service


@pytest.fixture
def stock(databases: MigratedDatabases) -> Iterator[Service]:
    """The downstream, with its tables in a schema of theirs."""
    with _service(databases, "stock", "shield") as service:
        yield service


@pytest.fixture
def services(databases: MigratedDatabases) -> Iterator[list[Service]]:
    """Three of them, one with its tables in a schema of theirs."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(_service(databases, name, schema))
            for name, schema in (("orders", None), ("stock", "shield"), ("mail", None))
        ]


@pytest.fixture
def four_services(databases: MigratedDatabases) -> Iterator[dict[str, Service]]:
    """Those of the histories that are made, by their names; one has a schema of its own."""
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(_service(databases, name, schema))
            for name, schema in zip(NAMES, (None, "shield", None, None), strict=True)
        }


@pytest.fixture
def nights(spark: SparkSession, tmp_path: Path) -> Nights:
    """Stored runs, one after the other, each from where the last good one ended."""
    return Nights(spark, tmp_path)


@contextmanager
def _service(databases: MigratedDatabases, name: str, schema: str | None) -> Iterator[Service]:
    with databases.database(SHARDS, schema) as url:
        service = Service(name=name, url=url, schema=schema)
        yield service
        service.close()
