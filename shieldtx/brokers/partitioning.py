"""The partition of a record, the same for every client and every language."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_32_BITS: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data`, as an unsigned number.

    Seed and byte order are those of `org.apache.kafka.common.utils.Utils.murmur2`, with which
    Kafka's Java client chooses partitions by key.
    """
    words = len(data) // 4
    hash_ = _SEED ^ len(data)
    for word in struct.unpack_from(f"<{words}I", data):
        mixed = word * _MULTIPLIER & _32_BITS
        mixed ^= mixed >> 24
        hash_ = (hash_ * _MULTIPLIER ^ mixed * _MULTIPLIER) & _32_BITS
    tail = data[words * 4 :]
    if tail:
        hash_ = (hash_ ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _32_BITS
    hash_ ^= hash_ >> 13
    hash_ = hash_ * _MULTIPLIER & _32_BITS
    return hash_ ^ hash_ >> 15


@lru_cache(maxsize=32_768)
def _positive_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition (0 to `partitions` - 1) of all records with this key."""
    return _positive_hash(key) % partitions


class Spread:
    """Chooses partitions for the records of one topic that have no key.

    It changes the partition after about `stretch` bytes: records that share a partition share a
    batch, and few large batches are cheaper than many small ones. Kafka's Java client does the same
    since KIP-794.
    """

    def __init__(self, stretch: int) -> None:
        self._stretch = stretch
        self._partition = 0
        self._bytes = 0

    def next_partition(self, size: int, partitions: int) -> int:
        """Return the partition (0 to `partitions` - 1) of the next record, of `size` bytes."""
        if self._bytes + size > self._stretch:
            self._partition += 1
            self._bytes = 0
        self._bytes += size
        return self._partition % partitions
