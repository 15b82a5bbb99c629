"""The experiments: each measures a few related figures."""
