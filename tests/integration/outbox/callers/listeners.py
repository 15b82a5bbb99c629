"""Sessions whose listeners let a caller write: before shieldtx's listeners, and after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

HEARD_BY = "callers.heard_by"
"""The key, in a session's info, of what is called with the name of an event."""
FIRST = " first"
"""The end of the name of an event that is heard before shieldtx hears it."""
NAMES = (
    "before_flush",
    "after_flush",
    "after_flush_postexec",
    "before_commit",
    "after_commit",
    "after_rollback",
    "after_soft_rollback",
)


class ListenedSession(Session):
    """A session of a caller with listeners."""


def _listener(name: str) -> Callable[..., None]:
    def hear(session: Session, *_: Any) -> None:
        session.info[HEARD_BY](name)

    return hear


for _name in NAMES:
    event.listen(ListenedSession, _name, _listener(_name))
event.listen(ListenedSession, "before_commit", _listener("before_commit" + FIRST), insert=True)
