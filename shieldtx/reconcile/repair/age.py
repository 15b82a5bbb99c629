"""How old an event may be to be delivered once more.

An event has no second effect only as long as its receiver keeps the row by which it knows it.
"""

from __future__ import annotations

from datetime import datetime

from shieldtx.ports.hand_over import Line, Sibling


def may_be_forgotten(
    settled_at: datetime | None, line: Line | Sibling | None = None, *, since: datetime | None
) -> bool:
    """Whether a receiver may have handled an event, and purged its row.

    What it settled before `since` it may have purged; None: it purges nothing. An event that may
    have been sent more than once counts from when it was written: the first copy may have been
    handled then.
    """
    if since is None:
        return False
    is_old = settled_at is not None and settled_at < since
    return is_old or (line is not None and line.unconfirmed and line.written_at < since)
