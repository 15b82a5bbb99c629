"""How a job says what it is doing."""

from __future__ import annotations

from shieldtx.reconcile.spark_launcher import PROGRESS


def report_progress(what: str) -> None:
    """Write a line of progress into the log, which the process that waits for the job reads."""
    print(f"{PROGRESS}{what}", flush=True)
