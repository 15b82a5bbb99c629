"""The reconciliation without Spark: the rules of mismatches, requests of runs, and reports."""
