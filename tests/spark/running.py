"""Runs of the reconciliation in an existing Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from shieldtx.reconcile.findings import Findings
from shieldtx.reconcile.request import ReconcileRequest
from spark import job
from spark.prefetch import prefetching


def reconciled(spark: SparkSession, request: ReconcileRequest) -> Findings:
    """Run the reconciliation, which also leaves its findings in the request's folder."""
    with prefetching(request) as prefetch:
        return job.run(spark, prefetch)
