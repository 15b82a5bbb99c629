"""The process of the job: a request on standard input, results as files and an exit status."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from shieldtx.embedded.jars import fetch_jdbc_driver
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import ReconcileRequest, from_json

from . import job
from .packaging import ship
from .prefetch import prefetching
from .progress import report_progress

UNTIL_STDIN_CLOSES = "--until-stdin-closes"
"""End when the process at the other end of standard input has ended."""
_CAUSED_BY = "Caused by: "
# A run ends before the optimising compiler has paid off. Measured on 2 cores, start included: 14
# instead of 28 s of processor time for a hundred rows, 24 instead of 37 s for half a million.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(arguments: list[str]) -> int:
    """Run the request on the first line of standard input, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="shieldtx-reconcile-") as scratch:
        line = sys.stdin.readline()
        leave = partial(_leave, scratch)
        signal.signal(signal.SIGTERM, leave)
        if UNTIL_STDIN_CLOSES in arguments:
            threading.Thread(target=_leave_after_stdin, args=[leave], daemon=True).start()
        try:
            request = from_json(line)
            with prefetching(request) as prefetch, session(request, scratch) as spark:
                return job.run(spark, prefetch).outcome
        except Exception:  # noqa: BLE001  any error must be reported by the exit status
            traceback.print_exc()
            return RunOutcome.ERROR


@contextmanager
def session(request: ReconcileRequest, scratch: str) -> Iterator[SparkSession]:
    """Yield a Spark session for one run; add the root cause to an error, and stop the session.

    The settings become part of a command line, so none of them may be secret.
    """
    builder = (
        SparkSession.Builder()
        .master(request.master)
        .appName("shieldtx reconcile")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.sql.session.timeZone", "UTC")
        # The root cause of an error is only in Java's stack trace.
        .config("spark.sql.pyspark.jvmStacktrace.enabled", "true")
        # Otherwise each function on a column makes five calls to Java for the context of a possible
        # error: half a second of a run. Python's own traceback has the line.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        # For two cores and narrow rows; the default of 200 costs more than the join.
        .config("spark.sql.shuffle.partitions", "4")
        # Rows are kept only for a second read: finding the best compression costs more.
        .config("spark.sql.inMemoryColumnarStorage.compressed", "false")
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .config("spark.sql.warehouse.dir", scratch)
        .config("spark.local.dir", scratch)
        .config("spark.jars", str(driver_jar(request)))
    )
    spark = builder.getOrCreate()
    try:
        ship(spark, Path(scratch))
        yield spark
    except Exception as error:
        raise RuntimeError(root_cause(error)) from error
    finally:
        spark.stop()


def driver_jar(request: ReconcileRequest) -> Path:
    """Return the JDBC driver of the request, or else download and verify the pinned one.

    Raises DownloadFailed.
    """
    return request.jdbc_jar or fetch_jdbc_driver(progress=report_progress)


def root_cause(error: Exception) -> str:
    """Return the cause of an error in one line, with notes about its location.

    The text of the Python error contains all of Java's errors. The database's error is the most
    informative one, and otherwise the innermost.
    """
    lines = str(error).splitlines() or [""]
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    causes.sort(key=lambda cause: cause.startswith("org.postgresql."))
    what = causes[-1] if causes else f"{type(error).__name__}: {lines[0]}"
    return " ".join([what, *(f"({note})" for note in getattr(error, "__notes__", ()))])


def _leave_after_stdin(leave: Callable[[], None]) -> None:
    sys.stdin.read()
    leave()


def _leave(scratch: str, *_signal: object) -> None:
    """End at once: Spark may be in a call that never returns.

    The JVM ends when this process has ended.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(RunOutcome.ERROR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
