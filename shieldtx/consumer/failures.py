"""Errors of a handler that are not an Exception, and still are a failure of its attempt."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import DBAPIError, OperationalError

from shieldtx.domain.error_groups import leaves_of, reason_with_leaves
from shieldtx.errors import HandlerError

_NOT_OF_AN_EVENT: Final = ("08", "40", "57P", "55P03")
"""SQLSTATE of lost connections, conflicts of transactions, the end of a server, locks."""

_LOCKED_IN_SQLITE: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")


def let_fail(call: Callable[[], None]) -> None:
    """Call; if an error that is not an Exception is a failure of the attempt, raise it as one."""
    try:
        call()
    except (CancelledError, BaseExceptionGroup) as error:
        failure = failure_of(error)
        if failure is error:
            raise
        raise failure from error


def may_concern_no_event(error: Exception) -> bool:
    """Whether an error of the database may have another cause than the event that met it.

    The drivers name such an error in different ways: psycopg's are OperationalError, and asyncpg's
    have only a SQLSTATE.
    """
    return isinstance(error, OperationalError) or concerns_no_event(error)


def concerns_no_event(error: Exception) -> bool:
    """Whether a handler's work was ended by the database: lost connection, conflict, lock, stop.

    Not so a database that cannot be reached or is full, or a statement that takes too long: these
    last, and fail every event.
    """
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None) or ""
    is_locked = getattr(error.orig, "sqlite_errorname", "").startswith(_LOCKED_IN_SQLITE)
    return error.connection_invalidated or is_locked or state.startswith(_NOT_OF_AN_EVENT)


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
