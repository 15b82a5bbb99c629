"""The reconciliation on Spark: applies the rules of `shieldtx/reconcile/` to whole tables.

The modules import each other relatively: the package is `spark` in the repository and on the
workers of a cluster, and `shieldtx.spark` in the wheel.
"""
