"""The events that wait because an earlier one of their key was not handed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shieldtx.ports.hand_over import Key, Line
from shieldtx.reconcile.repair.places import Places


class HeldBack:
    """The positions of the events of each key that a group still lacks."""

    def __init__(self) -> None:
        self._lacked: defaultdict[Key, Places] = defaultdict(Places)

    def behind(self, lines: Iterable[Line]) -> None:
        """Block the later events of the keys of these."""
        for line in lines:
            if key := line.ordered_by:
                self._lacked[key].add(line)

    def __contains__(self, line: Line) -> bool:
        key = line.ordered_by
        return key is not None and key in self._lacked and self._lacked[key].any_before(line)
