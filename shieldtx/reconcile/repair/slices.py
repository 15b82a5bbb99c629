"""Splits sequences and iterables into parts of a bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")


def slices(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    """Yield the items in their order, `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Yield the items in their order, `size` at a time, with only one part in memory."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
