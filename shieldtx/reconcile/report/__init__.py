"""How findings are told: the page for people, the files of a run, the table of a terminal."""

from shieldtx.reconcile.report.writer import write

__all__ = ["write"]
