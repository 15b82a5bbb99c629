"""How fast shieldtx is, side by side with its peers: `make bench`, or `python -m benchmarks`."""
