"""Things by their digests, however many: in a set each takes some twenty bytes."""

from __future__ import annotations

import hashlib
from array import array
from typing import Final

_BYTES: Final = 8
_FEWEST: Final = 1_024
_EMPTY: Final = 0


class DigestSet:
    """A hash table of digests, at most two thirds of which are in use.

    Of 64 bits each: among ten million things, two are alike once in some 350,000 such sets.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [_EMPTY]) * _FEWEST
        self._used = 0

    def add(self, thing: bytes) -> None:
        """Add a thing."""
        if self._put(_digest(thing)):
            self._used += 1
            if 3 * self._used > 2 * len(self._slots):
                self._grow()

    def __contains__(self, thing: bytes) -> bool:
        digest = _digest(thing)
        return self._slots[self._slot(digest)] == digest

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", [_EMPTY]) * (2 * len(old))
        for digest in old:
            if digest != _EMPTY:
                self._put(digest)

    def _put(self, digest: int) -> bool:
        """Put a digest into its slot; return whether it is new."""
        slot = self._slot(digest)
        is_new = self._slots[slot] == _EMPTY
        self._slots[slot] = digest
        return is_new

    def _slot(self, digest: int) -> int:
        """Return the slot that has a digest, or that is free for it."""
        slots, last = self._slots, len(self._slots) - 1
        slot = digest & last
        while slots[slot] not in (_EMPTY, digest):
            slot = slot + 1 & last
        return slot


class DigestRanges(DigestSet):
    """The lowest and the highest number of each thing, which takes some sixty bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._lowest, self._highest = _numbers(_FEWEST), _numbers(_FEWEST)

    def widen(self, thing: bytes, number: int) -> None:
        """Add a number of a thing."""
        is_new = thing not in self
        self.add(thing)
        slot = self._slot(_digest(thing))
        self._lowest[slot] = number if is_new else min(number, self._lowest[slot])
        self._highest[slot] = number if is_new else max(number, self._highest[slot])

    def range_of(self, thing: bytes) -> tuple[int, int] | None:
        """Return the lowest and the highest number of a thing; None: it has none."""
        slot = self._slot(_digest(thing))
        if self._slots[slot] == _EMPTY:
            return None
        return self._lowest[slot], self._highest[slot]

    def _grow(self) -> None:
        old = self._slots, self._lowest, self._highest
        super()._grow()
        self._lowest, self._highest = _numbers(len(self._slots)), _numbers(len(self._slots))
        for digest, lowest, highest in zip(*old, strict=True):
            if digest != _EMPTY:
                slot = self._slot(digest)
                self._lowest[slot], self._highest[slot] = lowest, highest


def _numbers(size: int) -> array[int]:
    return array("q", [0]) * size


def _digest(thing: bytes) -> int:
    digest = hashlib.blake2b(thing, digest_size=_BYTES).digest()
    return int.from_bytes(digest, "big") or 1
