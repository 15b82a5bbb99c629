"""The Python state of a session and its connection, which the next handler should find unchanged.

It consists of info, attributes, binds, listeners and execution options, without shieldtx's own. A
change is not undone: a handler may have left it for the commit, such as a listener.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.engine.events import ConnectionEvents
from sqlalchemy.orm import Session
from sqlalchemy.orm.events import SessionEvents

_OURS: Final = "shieldtx."
"""The prefix of shieldtx's own keys in a session's info, and in a connection's options."""

# SQLAlchemy 2.0 keeps the databases of single classes under a private name.
_BINDS: Final = "binds" if hasattr(Session(), "binds") else "_Session__binds"
_HABITS: Final = attrgetter("autoflush", "expire_on_commit", "autobegin", "bind", _BINDS)
"""The attributes of a session that change its behaviour or its database."""


def _names_of(events: type) -> list[str]:
    return [name for name in vars(events) if name[0] != "_" and name != "dispatch"]


_OF_SESSION: Final = attrgetter(*_names_of(SessionEvents))
"""The listeners of a session, one object per event; the first listener replaces that object."""
_OF_CONNECTION: Final = attrgetter(*(f"{name}.local" for name in _names_of(ConnectionEvents)))
"""The listeners of a connection, without its engine's: they see its next statements."""


class _Listeners:
    """The listeners of a session or a connection, as they were found."""

    __slots__ = ("_collections", "_dispatch", "_found", "_has_any", "_of")

    def __init__(self, of: Callable[[Any], tuple[Any, ...]], dispatch: object) -> None:
        self._of, self._dispatch = of, dispatch
        self._note(of(dispatch))
        self._found = self._all

    def are_unchanged(self) -> bool:
        """Whether the listeners are the same."""
        collections = self._of(self._dispatch)
        if collections == self._collections and not self._has_any:
            return True
        # There are or were listeners: they may be gone, like those of an interceptor.
        self._note(collections)
        return self._all == self._found

    def _note(self, collections: tuple[Any, ...]) -> None:
        self._collections = collections
        # An event without listeners so far has a tuple, which does not change.
        self._has_any = any(not isinstance(each.listeners, tuple) for each in collections)

    @property
    def _all(self) -> list[tuple[Any, ...]]:
        return [tuple(each.listeners) for each in self._collections]


class AsFound:
    """A session and its connection as they were found, for a comparison with their present state.

    A comparison follows each handler of a batch, so it makes the cheap checks first.
    """

    __slots__ = (
        "_attributes",
        "_connection",
        "_habits",
        "_info",
        "_info_size",
        "_listeners",
        "_listeners_of_connection",
        "_options",
        "_options_seen",
        "_session",
    )

    def __init__(self, session: Session, connection: Connection) -> None:
        self._session = session
        self._connection = connection
        self._listeners = _Listeners(_OF_SESSION, session.dispatch)
        self._listeners_of_connection = _Listeners(_OF_CONNECTION, connection.dispatch)
        self._habits = _HABITS(session)
        self._info, self._info_size = _others(session.info), len(session.info)
        self._options_seen = connection.get_execution_options()
        self._options = _others(self._options_seen)
        self._attributes = len(vars(session))

    def is_unchanged(self) -> bool:
        """Whether the state is as it was found."""
        session = self._session
        return (
            len(vars(session)) == self._attributes
            and _HABITS(session) == self._habits
            and self._has_same_info()
            and self._has_same_options()
            and self._listeners.are_unchanged()
            and self._listeners_of_connection.are_unchanged()
        )

    def _has_same_info(self) -> bool:
        info = self._session.info
        if not self._info and len(info) == self._info_size:
            return True
        self._info_size = len(info)
        return _others(info) == self._info

    def _has_same_options(self) -> bool:
        # Options are immutable: a change makes a new object.
        options = self._connection.get_execution_options()
        if options is self._options_seen:
            return True
        self._options_seen = options
        return _others(options) == self._options


def _others(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: values[key] for key in values if not str(key).startswith(_OURS)}
