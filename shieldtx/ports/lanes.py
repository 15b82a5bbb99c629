"""The port of a consumer's lanes: calls that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Lanes(Protocol):
    """Runs calls of one consumer at the same time, each in a lane of its own."""

    @property
    def count(self) -> int:
        """The maximum number of calls at the same time."""

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run up to `count` calls, and return their results in the order of the calls.

        When a call raises, the others still end first. Then the error of the earliest call is
        raised; one that ends the process (not an Exception) is raised before any other.
        """

    def close(self) -> None:
        """Release the threads; no call runs any more."""
