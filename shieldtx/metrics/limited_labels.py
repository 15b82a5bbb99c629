"""Labels whose number has a limit, however many values an application has."""

from __future__ import annotations

from typing import Final

OTHER: Final = "_other"
"""The label of all values above the limit."""


class LimitedLabels:
    """Passes the first values on, and puts OTHER in place of all others.

    Each value of a label costs memory in this process and in Prometheus, for as long as both run.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        """Return the label of a value."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value
