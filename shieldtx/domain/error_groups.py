"""Groups of errors: the errors in them, and what a reason says of these."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from shieldtx.domain.reasons import reason_of

_NAMED: Final = 5
"""So many errors of a group are named in a reason."""


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, and of groups in it; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves_of(each)
    else:
        yield error


def reason_with_leaves(error: BaseException) -> str:
    """Return the reason that an error is; of a group, with the errors in it."""
    reason = reason_of(error)
    if not isinstance(error, BaseExceptionGroup):
        return reason
    named = list(islice(leaves_of(error), _NAMED + 1))
    more = ["..."] if len(named) > _NAMED else []
    return f"{reason}: {'; '.join([*map(reason_of, named[:_NAMED]), *more])}"
