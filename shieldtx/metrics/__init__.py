"""Metrics of worker processes for Prometheus, and the HTTP endpoints that show them."""
