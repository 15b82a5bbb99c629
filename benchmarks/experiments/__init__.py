"""The experiments: each measures a few figures that belong together."""
