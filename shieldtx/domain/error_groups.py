"""Groups of errors: the errors in them, and their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from shieldtx.domain.reasons import reason_of

_NAMED: Final = 5
"""The maximum number of errors of a group that a reason names."""


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, also of nested groups; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves_of(each)
    else:
        yield error


def reason_with_leaves(error: BaseException) -> str:
    """Return the reason of an error; for a group, with the errors in it."""
    reason = reason_of(error)
    if not isinstance(error, BaseExceptionGroup):
        return reason
    named = list(islice(leaves_of(error), _NAMED + 1))
    more = ["..."] if len(named) > _NAMED else []
    return f"{reason}: {'; '.join([*map(reason_of, named[:_NAMED]), *more])}"
