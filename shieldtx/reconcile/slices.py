"""Sequences in parts of a bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")


def slices(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    """Yield the items in their order, `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
