"""A set of byte strings by their digests, at about twenty bytes each."""

from __future__ import annotations

import hashlib
from array import array
from typing import Final

_BYTES: Final = 8
_FEWEST: Final = 1_024
_EMPTY: Final = 0


class DigestSet:
    """A hash table of digests, at most two thirds full.

    The digests have 64 bits: two of ten million items collide once in about 350,000 such sets.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [_EMPTY]) * _FEWEST
        self._used = 0

    def add(self, thing: bytes) -> None:
        """Add an item."""
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
        """Store a digest in its slot; return whether it is new."""
        slot = self._slot(digest)
        is_new = self._slots[slot] == _EMPTY
        self._slots[slot] = digest
        return is_new

    def _slot(self, digest: int) -> int:
        """Return the slot of a digest, or the free slot for it."""
        slots, last = self._slots, len(self._slots) - 1
        slot = digest & last
        while slots[slot] not in (_EMPTY, digest):
            slot = slot + 1 & last
        return slot


def _digest(thing: bytes) -> int:
    digest = hashlib.blake2b(thing, digest_size=_BYTES).digest()
    return int.from_bytes(digest, "big") or 1
