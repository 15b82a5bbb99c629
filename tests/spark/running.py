"""Runs of the reconciliation in a Spark that is there already."""

from __future__ import annotations

from pyspark.sql import SparkSession

from shieldtx.reconcile.findings import Findings
from shieldtx.reconcile.request import ReconcileRequest
from spark import job
from spark.prefetch import prefetching


def reconciled(spark: SparkSession, request: ReconcileRequest) -> Findings:
    """Run the reconciliation, which leaves what it finds in the request's folder too."""
    with prefetching(request) as prefetch:
        return job.run(spark, prefetch)
