"""The repair of what a run has found: decisions, the order of keys, the ways to repair rows."""
