"""What the job's process says when it cannot do its work."""

from __future__ import annotations

from spark.__main__ import root_cause

TRACE = """[FAILED_JDBC.CONNECTION] Failed JDBC jdbc:postgresql:***(redacted)

JVM stacktrace:
org.apache.spark.sql.AnalysisException: [FAILED_JDBC.CONNECTION] Failed JDBC
\tat org.apache.spark.sql.errors.QueryCompilationErrors$.failed(Errors.scala:1)
Caused by: {first}
\tat org.postgresql.core.Connection.open(Connection.java:1)
Caused by: {second}
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)"""


def test_the_database_says_most_about_its_own_errors():
    refused = "org.postgresql.util.PSQLException: Connection to db:5432 refused."
    trace = TRACE.format(first=refused, second="java.net.ConnectException: Connection refused")
    assert root_cause(RuntimeError(trace)) == refused


def test_otherwise_the_innermost_error_of_java_knows_best():
    full = "java.io.IOException: No space left on device"
    trace = TRACE.format(first="org.apache.spark.SparkException: Job aborted", second=full)
    assert root_cause(RuntimeError(trace)) == full


def test_an_error_of_python_speaks_for_itself_and_says_where():
    error = ValueError("no such thing\nand more")
    error.add_note("in the database of service stock")
    assert root_cause(error) == "ValueError: no such thing (in the database of service stock)"
