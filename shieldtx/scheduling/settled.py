"""Results of calls that ran at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar, cast

T = TypeVar("T")

Settled: TypeAlias = tuple[T | None, BaseException | None]
"""The result of a call, or its error."""


def results_of(settled: Sequence[Settled[T]]) -> list[T]:
    """Return the results in order; raises the first error, before it one that is no Exception.

    So SystemExit ends the process although another call has failed as well.
    """
    errors = [error for _, error in settled if error is not None]
    if errors:
        raise next((each for each in errors if not isinstance(each, Exception)), errors[0])
    return [cast("T", value) for value, _ in settled]
