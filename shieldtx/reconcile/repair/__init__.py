"""The repair of a run's mismatches: decisions, the order of keys, the ways to repair rows."""
