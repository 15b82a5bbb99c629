"""The ids of the events that a block of code adds to a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.orm import Session

_Caller: TypeAlias = Session | Connection


class AddedIds:
    """Gives the ids of added events to the blocks that collect them.

    Ids are kept by session and not by thread or task, because a session has one user at a time, and
    its calls may run in any thread.
    """

    def __init__(self) -> None:
        self._collecting: WeakKeyDictionary[_Caller, list[list[UUID]]] = WeakKeyDictionary()

    @contextmanager
    def collect(self, caller: _Caller) -> Iterator[list[UUID]]:
        """Return the list to which the ids of this caller are appended during the block."""
        ids: list[UUID] = []
        blocks = self._collecting.setdefault(caller, [])
        blocks.append(ids)
        try:
            yield ids
        finally:
            # By identity: an inner block has an equal list where both saw the same events.
            blocks[:] = [each for each in blocks if each is not ids]
            if not blocks:
                self._collecting.pop(caller, None)

    def note(self, caller: _Caller, ids: Iterable[UUID]) -> None:
        """Append the ids of events that were added for a caller."""
        if self._collecting:
            for block in self._collecting.get(caller, ()):
                block.extend(ids)
