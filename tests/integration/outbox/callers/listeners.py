"""Sessions whose listeners let a caller write: before the listeners of shieldtx, and after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

HEARD_BY = "callers.heard_by"
"""The key, in a session's info, of the callable that receives the name of an event."""
FIRST = " first"
"""The suffix of the name of an event whose listener runs before the listener of shieldtx."""
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
