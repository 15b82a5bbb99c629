"""The progress messages of a job."""

from __future__ import annotations

from shieldtx.reconcile.spark_launcher import PROGRESS


def report_progress(what: str) -> None:
    """Write a progress message to the log, which the waiting process reads."""
    print(f"{PROGRESS}{what}", flush=True)
