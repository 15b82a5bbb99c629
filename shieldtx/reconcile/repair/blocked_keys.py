"""The events that wait because an earlier one of their key was not handed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shieldtx.ports.hand_over import EventPosition, Key
from shieldtx.reconcile.repair.key_positions import KeyPositions


class BlockedKeys:
    """The positions of the events of each key that a group still lacks."""

    def __init__(self) -> None:
        self._lacked: defaultdict[Key, KeyPositions] = defaultdict(KeyPositions)

    def block_after(self, positions: Iterable[EventPosition]) -> None:
        """Block the later events of the keys of these."""
        for position in positions:
            if key := position.ordered_by:
                self._lacked[key].add(position)

    def __contains__(self, position: EventPosition) -> bool:
        key = position.ordered_by
        return key is not None and key in self._lacked and self._lacked[key].any_before(position)
