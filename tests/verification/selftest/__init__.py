"""Tests of the tools of the proofs: proxies, checkers, processes, the browser."""
