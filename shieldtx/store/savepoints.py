"""The savepoints of a transaction, by the statements that make, release and roll back to them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_STATEMENT: Final = re.compile(
    r"\s*(savepoint|release|rollback)\s+"
    r"(?:(?:(?:work|transaction)\s+)?to\s+)?(?:savepoint\s+)?\"?(\w+)",
    re.IGNORECASE,
)


class Savepoints:
    """Which savepoints are open, and whether a handler's effect was rolled back with one."""

    __slots__ = ("_effect_depth", "_open", "is_effect_undone")

    def __init__(self) -> None:
        self._open: list[str] = []
        self._effect_depth: int | None = None
        """How many of the open savepoints have the effect of the handler in them."""
        self.is_effect_undone = False

    def note_statement(self, statement: str) -> None:
        """Follow a statement that is about to be executed."""
        found = _savepoint_in(statement)
        if found is None:
            return
        word, name = found
        if word == "savepoint":
            self._open.append(name)
        elif name in self._open:
            # Of two with the same name, the later one is meant.
            position = len(self._open) - 1 - self._open[::-1].index(name)
            is_inside = self._effect_depth is not None and position < self._effect_depth
            if word == "rollback":
                self.is_effect_undone = self.is_effect_undone or is_inside
                del self._open[position + 1 :]
            else:
                self._effect_depth = position if is_inside else self._effect_depth
                del self._open[position:]

    def note_effect(self) -> None:
        """Note that the effect of the handler is there."""
        self._effect_depth = len(self._open)

    def forget_effect(self) -> None:
        """Note that the handler's turn is over: nobody can undo its effect any more."""
        self._effect_depth = None


@lru_cache(maxsize=512)
def _savepoint_in(statement: str) -> tuple[str, str] | None:
    found = _STATEMENT.match(statement[:200])
    return None if found is None else (found[1].lower(), found[2].lower())
