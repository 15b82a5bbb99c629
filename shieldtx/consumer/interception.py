"""Interceptors: each runs around a handler, and can neither skip it nor keep half of its work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy.orm import Session

from shieldtx.consumer.handler_types import Interceptor
from shieldtx.domain.callables import name_of, run
from shieldtx.domain.events import Event
from shieldtx.errors import HandlerError


def intercept(
    interceptor: Interceptor, session: Session, event: Event, call: Callable[[], None]
) -> None:
    """Run an interceptor; raises HandlerError unless the handler has run once and succeeded."""
    proceed = _Proceed(name_of(interceptor), call)
    try:
        run(interceptor, session, event, proceed)
        proceed.check()
    finally:
        proceed.close()


class _Proceed:
    """The function by which an interceptor runs the handler, and the result of that call."""

    def __init__(self, interceptor: str, call: Callable[[], None]) -> None:
        self._interceptor = interceptor
        self._call = call
        self._thread: int | None = threading.get_ident()
        """The thread of the interceptor, until it has returned."""
        self._calls = 0
        self._has_ended = False
        self._is_misused = False
        self._failures: list[BaseException] = []

    def __call__(self) -> None:
        if threading.get_ident() != self._thread:
            self._is_misused = True
            raise HandlerError(self._elsewhere)
        self._calls += 1
        if self._calls > 1:
            error = HandlerError(
                f"the interceptor {self._interceptor} called proceed() {self._calls} times"
            )
            self._failures.append(error)
            raise error
        try:
            self._call()
        except BaseException as failure:
            self._failures.append(failure)
            raise
        self._has_ended = True

    @property
    def _elsewhere(self) -> str:
        return (
            f"the interceptor {self._interceptor} called proceed() in another thread, or after its "
            "return: the session belongs to the thread that runs the interceptor, call it there"
        )

    def check(self) -> None:
        """Raise HandlerError where the effect of the handler is missing or incomplete."""
        if self._is_misused:
            raise HandlerError(self._elsewhere)
        if not self._calls:
            raise HandlerError(
                f"the interceptor {self._interceptor} returned without calling proceed(), so the "
                "handler has not run. Call it, or raise shieldtx.Refused for an event that is not "
                "to be handled"
            )
        if self._failures:
            raise HandlerError(
                f"the interceptor {self._interceptor} returned although proceed() had failed, and "
                "what the handler had written until then would be committed: raise the error "
                "again, or shieldtx.Refused. Retries are the retry policy's"
            ) from self._failures[0]
        if not self._has_ended:
            raise HandlerError(
                f"the interceptor {self._interceptor} returned while proceed() still ran, so the "
                "handler's work is not done: return when proceed() has"
            )

    def close(self) -> None:
        """Refuse later calls, and release everything that refers to the frame of the call."""
        self._thread = None
        # An error refers to this frame: kept, both would wait for the garbage collector.
        self._failures.clear()
