"""The reconciliation on Spark: what `shieldtx/reconcile/` decides, for whole tables."""
