"""What code finds on a session and its connection, in Python: the next code should find the same.

Info, attributes, listeners and execution options, but for shieldtx's own. They are not put back:
what a handler leaves may be waiting for the commit, as a listener does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.orm.events import SessionEvents

_OURS: Final = "shieldtx."
"""So begin shieldtx's own keys of a session's info, and of a connection's options."""

_HABITS: Final = attrgetter("autoflush", "expire_on_commit", "autobegin", "bind")
"""Attributes of a session that change what it does."""

_OF_SESSION: Final = attrgetter(
    *(name for name in vars(SessionEvents) if name[0] != "_" and name != "dispatch")
)
"""The listeners of one session. Each event's are an object, which is another one with the first."""


class AsFound:
    """A session and its connection as they were found, to be compared with what they are.

    Each handler of a batch is followed by a comparison, so that it looks at what is cheap first.
    """

    __slots__ = (
        "_attributes",
        "_connection",
        "_habits",
        "_info",
        "_info_size",
        "_listeners",
        "_options",
        "_options_seen",
        "_session",
        "_statement_listeners",
        "_statement_listeners_size",
    )

    def __init__(self, session: Session, connection: Connection) -> None:
        self._session = session
        self._connection = connection
        self._listeners = _OF_SESSION(session.dispatch)
        self._statement_listeners = _statement_listeners(connection)
        self._statement_listeners_size = len(self._statement_listeners)
        self._habits = _HABITS(session)
        self._info, self._info_size = _others(session.info), len(session.info)
        self._options_seen = connection.get_execution_options()
        self._options = _others(self._options_seen)
        self._attributes = len(vars(session))

    def is_unchanged(self) -> bool:
        """Whether all is as it was found."""
        session = self._session
        return (
            len(vars(session)) == self._attributes
            and _HABITS(session) == self._habits
            and self._has_same_info()
            and self._has_same_options()
            and self._has_same_listeners()
        )

    def _has_same_info(self) -> bool:
        info = self._session.info
        if not self._info and len(info) == self._info_size:
            return True
        self._info_size = len(info)
        return _others(info) == self._info

    def _has_same_options(self) -> bool:
        # They are immutable: a change makes another object of them.
        options = self._connection.get_execution_options()
        if options is self._options_seen:
            return True
        self._options_seen = options
        return _others(options) == self._options

    def _has_same_listeners(self) -> bool:
        if len(self._statement_listeners) != self._statement_listeners_size:
            return False
        listeners = _OF_SESSION(self._session.dispatch)
        if listeners == self._listeners:
            return True
        # Some were there: perhaps they are gone, as an interceptor's are.
        self._listeners = listeners
        return not any(each.listeners for each in listeners)


def _statement_listeners(connection: Connection) -> Sized:
    """Return the connection's own listeners of statements, without those of its engine.

    They are the ones that see, or change, the statements of the next handler.
    """
    joined = connection.dispatch.before_cursor_execute
    listeners: Sized = getattr(joined, "local", joined).listeners
    return listeners


def _others(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: values[key] for key in values if not str(key).startswith(_OURS)}
