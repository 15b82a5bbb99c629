"""Errors of a handler that are not an Exception, and still are a failure of its attempt."""

from __future__ import annotations

from asyncio import CancelledError

from shieldtx.domain.error_groups import leaves_of, reason_with_leaves
from shieldtx.errors import HandlerError


def failure_of(error: CancelledError | BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise for a handler's error: a failure of its attempt, if possible.

    A task that is cancelled inside a handler must not end the process, as SystemExit and
    KeyboardInterrupt do.
    """
    is_failure = all(isinstance(leaf, Exception | CancelledError) for leaf in leaves_of(error))
    if isinstance(error, ExceptionGroup) or not is_failure:
        return error
    return HandlerError(
        f"an asyncio task that the handler waited for was cancelled ({reason_with_leaves(error)})"
    )
