"""The command line: `shieldtx`."""

from shieldtx.cli.program import main

__all__ = ["main"]
