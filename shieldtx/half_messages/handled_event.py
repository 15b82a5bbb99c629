"""What is being handled around the preparation of a half message: an event of it is the cause.

A half message is prepared in a transaction of its own, so nothing of the handler's session comes
with it. The connection of that session is told of the event when its handling begins, in the thread
or task that calls the handler; it is remembered there.
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
    """Return what the handler around this call handles; None outside of handlers.

    In the tasks of a handler too, and in threads that are started with its context (as by
    asyncio.to_thread).
    """
    if (around := _AROUND.get()) is None:
        return None
    handled, connection = around[0], around[1]()
    # After an attempt that has failed, nobody has said that the handling is over.
    has_ended = handled.is_over or connection is None or connection.closed
    return None if has_ended else handled
