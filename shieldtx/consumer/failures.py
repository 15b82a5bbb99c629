"""What of a handler's errors that are no Exception is a failure of its attempt all the same."""

from __future__ import annotations

from asyncio import CancelledError

from shieldtx.domain.error_groups import leaves_of, reason_with_leaves
from shieldtx.errors import HandlerError


def failure_of(error: CancelledError | BaseExceptionGroup[BaseException]) -> BaseException:
    """Return as what the error of a handler goes on: as a failure of its attempt, if it can be one.

    A task that is cancelled inside of a handler is no reason to end the process, as SystemExit and
    KeyboardInterrupt are.
    """
    is_failure = all(isinstance(leaf, Exception | CancelledError) for leaf in leaves_of(error))
    if isinstance(error, ExceptionGroup) or not is_failure:
        return error
    return HandlerError(
        f"an asyncio task that the handler waited for was cancelled ({reason_with_leaves(error)})"
    )
