"""The reconciliation on Spark: what `shieldtx/reconcile/` decides, for whole tables.

Its modules import each other relatively: the package is `spark` in the repository and on the
workers of a cluster, and `shieldtx.spark` in the wheel.
"""
