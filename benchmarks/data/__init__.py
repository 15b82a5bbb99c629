"""The events of the benchmarks, and databases full of them."""
