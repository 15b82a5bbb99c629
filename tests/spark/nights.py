"""Consecutive nights of one reconciliation, stored like those of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import create_engine, select, update

from shieldtx.app.reconciliation import request_of, run_stored
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import Findings, OutputFolder
from shieldtx.reconcile.incremental import Mode, mode_of
from shieldtx.reconcile.request import ReconcileRequest, Selection
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.store.tables import tables
from tests.spark.running import reconciled

MARGIN = timedelta(minutes=15)


class Nights:
    """Runs in one Spark session; setting the stored runs back simulates the passing of days."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._number = 0

    def run(
        self, *services: Any, scope: str = "nightly", selection: Selection | None = None, **of: Any
    ) -> Findings:
        """Reconcile these services; by default from where the last good run ended."""
        asked = {name: of.pop(name) for name in ("push_down",) if name in of}
        configuration = Configuration(scope=scope, services=services, **({"margin": MARGIN} | of))
        self._number += 1
        request = request_of(configuration, self.folder)
        request = replace(request, **asked)
        result = run_stored(configuration, request, selection, who="night", job=self._job)
        assert result.findings is not None
        return result.findings

    @property
    def folder(self) -> Path:
        """Return the folder with the results of the latest run."""
        return self._folder / str(self._number)

    def _job(self, request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        findings = reconciled(self._spark, request)
        # In production a run is its own process, and leaves nothing in memory. Here one process has
        # many.
        self._spark.catalog.clearCache()
        return ReconcileResult(
            outcome=findings.outcome,
            findings=findings,
            problem="",
            folder=OutputFolder(path=request.folder),
        )


def mode(findings: Findings) -> Mode:
    """Return the mode of a run: how much the run judged."""
    return mode_of(findings.selection)


def a_day_passes(home: Any, days: float = 1) -> None:
    """Set the stored runs and their watermarks back by this many days."""
    set_back(home, timedelta(days=days))


def set_back(home: Any, by: timedelta, *, with_rows: bool = False) -> None:
    """Set stored runs back; with `with_rows`, also the times of the rows that they recorded."""
    run = tables(home.schema).reconcile_run
    engine = create_engine(home.url)
    with engine.begin() as connection:
        for row in connection.execute(select(run)).all():
            connection.execute(
                update(run)
                .where(run.c.run_id == row.run_id)
                .values(
                    started_at=row.started_at - by,
                    watermarks=_set_back(row.watermarks, by),
                    basis=_rows_set_back(row.basis, by) if with_rows else row.basis,
                )
            )
    engine.dispose()


def _set_back(watermarks: str, by: timedelta) -> str:
    moments = json.loads(watermarks)
    return json.dumps({name: _earlier(when, by) for name, when in moments.items()})


def _rows_set_back(basis: str, by: timedelta) -> str:
    judged = json.loads(basis)
    for service in judged["services"].values():
        history = service["history"]
        history["asked_at"] = _earlier(history["asked_at"], by)
        for settled in filter(None, history["latest_settled"]):
            settled["settled_at"] = _earlier(settled["settled_at"], by)
    return json.dumps(judged)


def _earlier(when: str, by: timedelta) -> str:
    return (datetime.fromisoformat(when) - by).isoformat()
