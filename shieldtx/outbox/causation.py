"""Causation: the events that a handler adds name the event that it handles as their cause.

The event is kept on the session and on its connection, so that a handler may add on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shieldtx.domain.events import Event
from shieldtx.errors import TransactionRefused

_HANDLING = "shieldtx.handling"


@dataclass(slots=True)
class Handled:
    """What is being handled in a transaction; a batch handles one event after the other."""

    events: Sequence[Event] = ()
    """Of the handler that runs, or has run last."""
    is_list: bool = False
    """Whether the handler takes a list: only it knows which event of it causes another."""
    earlier: list[Event] = field(default_factory=list)
    """Those of the handlers before, in the same transaction."""
    is_over: bool = False
    """Whether the handler has returned: what is added now may have been meant by any of them."""

    def cause_of(self, event: Event) -> Event | None:
        """Return the handled event that `event` names by its id alone, or the one that there is.

        Raises TransactionRefused for an event that is added after several handlers, as by a
        listener of the commit, and names none of their events.
        """
        if event.causation_id is not None:
            return None if event.causation_source is not None else self._named_by(event)
        if self.is_over and self.earlier:
            raise TransactionRefused(
                f"{event.type} is added after the handlers of {len(self.earlier) + 1} events or "
                "more, which share a transaction, and which of them causes it is unknown: a "
                "rollback would take back another one. Add events in the handler, or name the "
                "cause with Event(causation_id=...); the events are handled one by one meanwhile"
            )
        return self._only

    def traceparent_for(self, event: Event) -> str | None:
        """Return the trace that `event` continues: its cause's, or the one handled event's."""
        continued = self._named_by(event) or self._only
        return None if continued is None else continued.traceparent

    @property
    def _only(self) -> Event | None:
        return None if self.is_list else next(iter(self.events), None)

    def _named_by(self, event: Event) -> Event | None:
        handled = chain(self.events, self.earlier)
        return next((each for each in handled if each.id == event.causation_id), None)


def handling(session: Session, *events: Event, is_list: bool = False) -> None:
    """Let what is added on `session`, or on its connection, be known as a handler's of `events`."""
    handled: Handled | None = session.info.get(_HANDLING)
    if handled is None:
        handled = session.info[_HANDLING] = Handled()
        session.connection().execution_options(**{_HANDLING: handled})
    handled.earlier += handled.events
    handled.events, handled.is_list, handled.is_over = events, is_list, False


def handling_is_over(session: Session) -> None:
    """Note that the handler has returned: it adds nothing on `session` from now on."""
    handled: Handled = session.info[_HANDLING]
    handled.is_over = True


def handled_in(caller: Session | AsyncSession | Connection) -> Handled | None:
    """Return what is noted of a transaction's handlers; None outside of them.

    A session that a handler has made on the connection of its own one knows nothing itself: the
    connection does.
    """
    noted: Handled | None
    if isinstance(caller, Connection):
        noted = caller.get_execution_options().get(_HANDLING)
    else:
        noted = caller.info.get(_HANDLING)
    return noted if noted is not None and noted.events else None
