"""How findings are told: the page for people, the files of a run, the table of a terminal."""

from shieldtx.reconcile.report.files import write

__all__ = ["write"]
