"""The savepoints of a transaction, by the statements that make, release and roll back to them."""

from __future__ import annotations

from shieldtx.domain.sql import SavepointStatement, SavepointStep, savepoints_in


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
        for each in savepoints_in(statement):
            self._note(each)

    def _note(self, statement: SavepointStatement) -> None:
        if statement.step is SavepointStep.SET:
            self._open.append(statement.name)
        elif statement.name in self._open:
            # Of two with the same name, the later one is meant.
            position = len(self._open) - 1 - self._open[::-1].index(statement.name)
            is_inside = self._effect_depth is not None and position < self._effect_depth
            if statement.step is SavepointStep.ROLL_BACK:
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
