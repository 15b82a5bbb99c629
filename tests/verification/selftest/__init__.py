"""Tests of the tools that prove: proxies, checkers, processes, the browser."""
