"""The reconciliation: what a mismatch is, how a run is asked for and reported. No Spark here."""
