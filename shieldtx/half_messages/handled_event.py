"""The event being handled while a half message is prepared: the half message names it as its cause.

A half message is prepared in a transaction of its own, so that the handler's session is not
available. When the handling begins, the session's connection receives the event, in the thread or
task that calls the handler; a context variable keeps it there.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine
from sqlalchemy import event as sqlalchemy_event

from shieldtx.outbox.causation import Handled

_AROUND: ContextVar[tuple[Handled, ref[Connection]] | None] = ContextVar(
    "shieldtx.handled_event", default=None
)


@sqlalchemy_event.listens_for(Engine, "set_connection_execution_options")
def _on_options(connection: Connection, options: dict[str, Any]) -> None:
    for option in options.values():
        if isinstance(option, Handled):
            _AROUND.set((option, ref(connection)))


def handled_around() -> Handled | None:
    """Return the events of the handler around this call; None outside of handlers.

    Also in the tasks of a handler, and in threads that are started with its context (as by
    asyncio.to_thread).
    """
    if (around := _AROUND.get()) is None:
        return None
    handled, connection = around[0], around[1]()
    # After a failed attempt, the end of the handling was not recorded.
    has_ended = handled.is_over or connection is None or connection.closed
    return None if has_ended else handled
