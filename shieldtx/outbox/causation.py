"""Causation: the events that a handler adds name the event that it handles as their cause.

The session and its connection both keep the handled event, so that a handler may add on either.
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
    """The events handled in a transaction; a batch handles one event after the other."""

    events: Sequence[Event] = ()
    """Events of the handler that runs, or that ran last."""
    is_list: bool = False
    """Whether the handler takes a list: only the handler knows which of its events causes
    another."""
    earlier: list[Event] = field(default_factory=list)
    """Events of earlier handlers in the same transaction."""
    is_over: bool = False
    """Whether the handler has returned: an event added now may belong to any of the handlers."""

    def cause_of(self, event: Event) -> Event | None:
        """Return the handled event that `event` names by its id alone, or the only handled event.

        Raises TransactionRefused for an event that is added after several handlers, as by a commit
        listener, without the id of a handled event.
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
        """Return the trace that `event` continues: its cause's, or the only handled event's."""
        continued = self._named_by(event) or self._only
        return None if continued is None else continued.traceparent

    @property
    def _only(self) -> Event | None:
        return None if self.is_list else next(iter(self.events), None)

    def _named_by(self, event: Event) -> Event | None:
        handled = chain(self.events, self.earlier)
        return next((each for each in handled if each.id == event.causation_id), None)


def handling(session: Session, *events: Event, is_list: bool = False) -> None:
    """Record that events added on `session` or its connection come from a handler of `events`."""
    handled: Handled | None = session.info.get(_HANDLING)
    if handled is None:
        handled = session.info[_HANDLING] = Handled()
        session.connection().execution_options(**{_HANDLING: handled})
    handled.earlier += handled.events
    handled.events, handled.is_list, handled.is_over = events, is_list, False


def handling_is_over(session: Session) -> None:
    """Record that the handler has returned, and adds nothing more on `session`."""
    handled: Handled = session.info[_HANDLING]
    handled.is_over = True


def handling_is_undone(session: Session) -> None:
    """Record that the effect of the last handler on `session` is undone, and others may follow.

    An event that is added without a handler, as by a commit listener, then has no known cause.
    """
    handled: Handled | None = session.info.get(_HANDLING)
    if handled is not None:
        handled.earlier += handled.events
        handled.is_over = True


def handled_in(caller: Session | AsyncSession | Connection) -> Handled | None:
    """Return the recorded handlers of a transaction; None outside of handlers.

    A handler may make another session on its connection: then only the connection has the record.
    """
    noted: Handled | None
    if isinstance(caller, Connection):
        noted = caller.get_execution_options().get(_HANDLING)
    else:
        noted = caller.info.get(_HANDLING)
    return noted if noted is not None and noted.events else None
