"""Tests of what the job's process reports when it cannot run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shieldtx.embedded.jars import JDBC_DRIVER
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from spark.__main__ import driver_jar, root_cause

TRACE = """[FAILED_JDBC.CONNECTION] Failed JDBC jdbc:postgresql:***(redacted)

JVM stacktrace:
org.apache.spark.sql.AnalysisException: [FAILED_JDBC.CONNECTION] Failed JDBC
\tat org.apache.spark.sql.errors.QueryCompilationErrors$.failed(Errors.scala:1)
Caused by: {first}
\tat org.postgresql.core.Connection.open(Connection.java:1)
Caused by: {second}
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)"""


def test_error_of_the_database_is_reported():
    refused = "org.postgresql.util.PSQLException: Connection to db:5432 refused."
    trace = TRACE.format(first=refused, second="java.net.ConnectException: Connection refused")
    assert root_cause(RuntimeError(trace)) == refused


def test_without_database_error_the_innermost_java_error_counts():
    full = "java.io.IOException: No space left on device"
    trace = TRACE.format(first="org.apache.spark.SparkException: Job aborted", second=full)
    assert root_cause(RuntimeError(trace)) == full


def test_error_of_python_is_reported_with_its_location():
    error = ValueError("no such thing\nand more")
    error.add_note("in the database of service stock")
    assert root_cause(error) == "ValueError: no such thing (in the database of service stock)"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of jars in which the driver was replaced."""
    monkeypatch.setenv("SHIELDTX_CACHE", str(tmp_path))
    folder = tmp_path / JDBC_DRIVER.name
    folder.mkdir()
    for jar in JDBC_DRIVER.jars():
        (folder / jar.file_name).write_bytes(b"another driver")
    return tmp_path


def test_without_a_driver_the_pinned_one_is_used_and_verified(cache: Path):
    jar = driver_jar(_request(cache))

    assert jar.is_relative_to(cache)
    (pinned,) = JDBC_DRIVER.jars()
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == pinned.sha256


def test_a_driver_that_the_request_names_is_used_as_it_is(tmp_path: Path):
    own = tmp_path / "own.jar"

    assert driver_jar(_request(tmp_path, jdbc_jar=own)) == own


def _request(folder: Path, jdbc_jar: Path | None = None) -> ReconcileRequest:
    service = ServiceDatabase(name="orders", url="postgresql://127.0.0.1/orders")
    return ReconcileRequest(services=(service,), folder=folder, jdbc_jar=jdbc_jar)
