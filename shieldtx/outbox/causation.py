"""Causation: the events that a handler adds name the event that it handles as their cause.

The event is kept on the session and on its connection, so that a handler may add on either.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shieldtx.domain.events import Event

_HANDLING = "shieldtx.handling"


@dataclass(slots=True)
class _Handled:
    """What is being handled in a transaction; a batch handles one event after the other."""

    event: Event | None = None


def handling(session: Session, event: Event | None) -> None:
    """Let events that are added on `session`, or on its connection, name `event` as their cause."""
    handled: _Handled | None = session.info.get(_HANDLING)
    if handled is None:
        handled = session.info[_HANDLING] = _Handled()
        session.connection().execution_options(**{_HANDLING: handled})
    handled.event = event


def handled_in(caller: Session | AsyncSession | Connection) -> Event | None:
    """Return the event whose handler runs in a transaction; None outside of handlers."""
    known = caller.get_execution_options() if isinstance(caller, Connection) else caller.info
    handled: _Handled | None = known.get(_HANDLING)
    return None if handled is None else handled.event
