"""Coroutine functions of an application, called by code that is not asynchronous.

The caller runs in a greenlet of SQLAlchemy on an event loop (`shieldtx.scheduling.event_loop`), as
the caller of `AsyncSession.run_sync` does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Final, NoReturn, TypeAlias, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncResult, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from shieldtx.domain.callables import check_effect
from shieldtx.errors import HandlerError

T = TypeVar("T")

Outcome: TypeAlias = tuple[object, BaseException | None]
"""What a coroutine function returns, or the error that it raises."""

_CALLS: Final = "shieldtx.calls"
"""The key in a session's info of the calls in its transaction."""

_CALL: ContextVar[object] = ContextVar("shieldtx.call", default=None)
"""The call of a function whose code runs: tasks that the function starts inherit it."""

_PATIENCE_S: Final = 10.0
"""Seconds that the tasks which a function leaves behind have to end when they are cancelled."""

_PRUNED_AT: Final = 64
"""The number of noted coroutines at which those that have ended are first forgotten."""


_ENDING: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""Event loops that end: tasks on them are cancelled, and their errors mean nothing."""


class LoopEnded(BaseException):
    """The event loop ends while a function runs on it: its attempt is interrupted, not failed."""

    def __init__(self) -> None:
        super().__init__("the event loop ends while a handler runs")


def note_end(loop: asyncio.AbstractEventLoop) -> None:
    """Let functions that still run on a loop be interrupted, whatever they make of it."""
    _ENDING.add(loop)


def wait_for(coroutine: Awaitable[T]) -> T:
    """Return the result of a coroutine of the application."""
    return await_only(coroutine)


def run_coroutine(function: Callable[..., Awaitable[object]], session: Session, given: Any) -> None:
    """Call a coroutine function for its effect with an AsyncSession of `session`.

    The AsyncSession has the same connection, transaction and objects. The function runs in a task
    of its own, so that nothing else is cancelled with it. Raises HandlerError for a call of the
    session that the function has not awaited, for a task that still uses the session when the
    function returns, and for a result whose code has not run. Such a task is cancelled before the
    transaction goes on; no later statement of it reaches the connection.
    """
    calls: _Calls = session.info.setdefault(_CALLS, _Calls())
    asynchronous = _CallSession(session)
    calls.current = object()
    try:
        result = _in_own_task(function, asynchronous, given, calls.current)
        asynchronous.check_awaited()
    finally:
        calls.current = None
        left = calls.take_left()
        if left:
            _end_tasks(left, session)
        # Last: a task may have been in the middle of a result that is closed here.
        asynchronous.end()
    if left:
        raise HandlerError(
            "the handler has returned while a task that it had started still used the session: "
            "await every task that uses the session inside of the handler"
        )
    check_effect(result, function)


def watch_calls(session: Session, connection: Connection) -> None:
    """Let only the function that runs use an asynchronous connection, and tasks that it starts."""
    calls = session.info[_CALLS] = _Calls()
    event.listen(connection, "before_cursor_execute", calls.check_statement)


class _Calls:
    """The calls of functions in one transaction, one after the other."""

    def __init__(self) -> None:
        self.current: object = None
        """The call that runs; None: shieldtx itself, or a plain function."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def check_statement(self, *_: Any) -> None:
        """Refuse a statement of a task that an earlier call has left behind."""
        if _CALL.get() is not self.current:
            raise HandlerError(_LATE.format(use="a statement was sent"))
        if self.current is not None and (task := asyncio.current_task()) is not None:
            self._tasks.add(task)

    def take_left(self) -> set[asyncio.Task[Any]]:
        """Return the tasks that have sent statements in the call and have not ended."""
        # The function's own task has ended; the current one is that of the caller.
        left = {task for task in self._tasks if not task.done()}
        self._tasks = set()
        return left


def _in_own_task(
    function: Callable[..., Awaitable[object]], session: AsyncSession, given: Any, call: object
) -> object:
    running = _outcome_of(function, session, given)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        # The coroutine is driven without a loop, and no tasks exist.
        result, error = wait_for(running)
    else:
        context = copy_context()
        context.run(_CALL.set, call)
        result, error = _result_of(loop, loop.create_task(running, context=context))
    try:
        if error is not None:
            raise error
        return result
    finally:
        # The error refers to this frame.
        del error


def _result_of(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Outcome]) -> Outcome:
    try:
        outcome = wait_for(task)
    except BaseException as error:
        if loop not in _ENDING:
            raise
        task.cancel()
        raise LoopEnded from error
    if loop in _ENDING and isinstance(outcome[1], Exception):
        raise LoopEnded from outcome[1]
    return outcome


async def _outcome_of(
    function: Callable[..., Awaitable[object]], session: AsyncSession, given: Any
) -> Outcome:
    """Return the result of a function, or its error: some would end the loop of a task.

    An error that a task raises would refer to the task, by the frames of those who wait for it.
    """
    try:
        return await function(session, given), None
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  it is raised again
        return None, error


def _end_tasks(tasks: set[asyncio.Task[Any]], session: Session) -> None:
    """Cancel tasks and wait for their end; a connection that one still uses is never used again."""
    for task in tasks:
        task.cancel()
    _, pending = wait_for(asyncio.wait(tasks, timeout=_PATIENCE_S))
    if pending and session.in_transaction():
        session.invalidate()


class _CallSession(AsyncSession):
    """An AsyncSession for one call of a function: it ends with the call, and misses no await."""

    def __init__(self, session: Session) -> None:
        super().__init__(sync_session_class=lambda **_: session)  # type: ignore[arg-type]  # or a callable
        self._coroutines: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._pruned_at = _PRUNED_AT
        self._streams: list[AsyncResult[Any]] = []

    def note(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Note a coroutine of the session, until it has ended."""
        if len(self._coroutines) >= self._pruned_at:
            self._coroutines = [each for each in self._coroutines if not _has_ended(each[1])]
            self._pruned_at = max(_PRUNED_AT, 2 * len(self._coroutines))
        self._coroutines.append((name, coroutine))

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Stream as AsyncSession does; the result ends with the call."""
        result = await super().stream(*args, **kwargs)
        self._streams.append(result)
        return result

    def check_awaited(self) -> None:
        """Raise HandlerError for the first call that was not awaited: it has done nothing."""
        for name, coroutine in self._coroutines:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                raise HandlerError(
                    f"session.{name}(...) was not awaited, so it has done nothing: the handler is "
                    "a coroutine function, whose session is an AsyncSession. Write "
                    f"`await session.{name}(...)`"
                )

    def end(self) -> None:
        """Refuse all later use."""
        for _, coroutine in self._coroutines:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                # Otherwise Python warns that it was never awaited.
                coroutine.close()
        self._coroutines.clear()
        for stream in self._streams:
            wait_for(stream.close())
        self._streams.clear()
        self.sync_session = self._proxied = _ENDED  # type: ignore[assignment]  # SQLAlchemy's two references


def _has_ended(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def _noted(name: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return a method of the session that notes each of its coroutines."""

    def call(self: _CallSession, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        coroutine = method(self, *args, **kwargs)
        self.note(name, coroutine)
        return coroutine

    return call


for _name, _method in {**vars(AsyncSession), "stream": _CallSession.stream}.items():
    if inspect.iscoroutinefunction(_method) and not _name.startswith("_"):
        setattr(_CallSession, _name, _noted(_name, _method))


_LATE: Final = (
    "{use} after the handler has returned, in no transaction of its event: await every task that "
    "uses the session inside of the handler"
)


class _Ended:
    def __getattr__(self, name: str) -> NoReturn:
        raise HandlerError(_LATE.format(use=f"session.{name} is used"))


_ENDED: Final = _Ended()
