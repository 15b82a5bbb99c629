"""Causation: the events that a handler adds name the event that it handles as their cause.

The event is kept on the session and on its connection, so that a handler may add on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shieldtx.domain.events import Event

_HANDLING = "shieldtx.handling"


@dataclass(slots=True)
class Handled:
    """What is being handled in a transaction; a batch handles one event after the other."""

    events: Sequence[Event] = ()
    is_list: bool = False
    """Whether the handler takes a list: only it knows which event of it causes another."""

    def cause_of(self, event: Event) -> Event | None:
        """Return the handled event that `event` names by its id alone, or the one that there is."""
        if event.causation_id is None:
            return self._only
        return None if event.causation_source is not None else self._named_by(event)

    def traceparent_for(self, event: Event) -> str | None:
        """Return the trace that `event` continues: its cause's, or the one handled event's."""
        continued = self._named_by(event) or self._only
        return None if continued is None else continued.traceparent

    @property
    def _only(self) -> Event | None:
        return None if self.is_list else next(iter(self.events), None)

    def _named_by(self, event: Event) -> Event | None:
        return next((each for each in self.events if each.id == event.causation_id), None)


def handling(session: Session, *events: Event, is_list: bool = False) -> None:
    """Let what is added on `session`, or on its connection, be known as a handler's of `events`."""
    handled: Handled | None = session.info.get(_HANDLING)
    if handled is None:
        handled = session.info[_HANDLING] = Handled()
        session.connection().execution_options(**{_HANDLING: handled})
    handled.events, handled.is_list = events, is_list


def handled_in(caller: Session | AsyncSession | Connection) -> Handled | None:
    """Return what is handled in a transaction; None outside of handlers."""
    noted = _noted_on(caller)
    return noted if noted is not None and noted.events else None


def _noted_on(caller: Session | AsyncSession | Connection) -> Handled | None:
    noted: Handled | None
    if isinstance(caller, Connection):
        noted = caller.get_execution_options().get(_HANDLING)
        return noted
    noted = caller.info.get(_HANDLING)
    if noted is None and isinstance(caller, Session) and isinstance(caller.bind, Connection):
        # A session that a handler has made on the connection of its own one.
        return _noted_on(caller.bind)
    return noted
