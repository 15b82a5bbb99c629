"""Which events wait because an earlier one of their key was to be handed over, and was not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shieldtx.ports.hand_over import Key, Line
from shieldtx.reconcile.repair.places import Places


class HeldBack:
    """Where the events of each key stand that a group lacks still."""

    def __init__(self) -> None:
        self._lacked: defaultdict[Key, Places] = defaultdict(Places)

    def behind(self, lines: Iterable[Line]) -> None:
        """Hold back what comes behind these."""
        for line in lines:
            if key := line.ordered_by:
                self._lacked[key].add(line)

    def __contains__(self, line: Line) -> bool:
        key = line.ordered_by
        return key is not None and key in self._lacked and self._lacked[key].any_before(line)
