"""Spark inside this process, set up for small tables: a start takes longer than a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from shieldtx.embedded.jars import fetch_jdbc_driver

# The compiled code of hundreds of runs does not fit into the 48 MB that the first compiler has by
# default. Java would then continue without a compiler.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Start Spark on two processors; its files go into `folder`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.Builder()
        .master("local[2]")
        .appName("tests")
        .config("spark.jars", str(fetch_jdbc_driver()))
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder))
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def interpreting(spark: SparkSession) -> Iterator[None]:
    """Let Spark interpret its plans: for a few rows, compiling takes most of the time."""
    with _compiling(spark, whole_stage="false", factory="NO_CODEGEN"):
        yield


@contextmanager
def compiling(spark: SparkSession) -> Iterator[None]:
    """Let Spark compile its plans, as in a run."""
    with _compiling(spark, whole_stage="true", factory="FALLBACK"):
        yield


@contextmanager
def _compiling(spark: SparkSession, *, whole_stage: str, factory: str) -> Iterator[None]:
    wanted = {"spark.sql.codegen.wholeStage": whole_stage, "spark.sql.codegen.factoryMode": factory}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
