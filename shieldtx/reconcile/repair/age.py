"""The maximum age at which an event may be delivered once more.

An event has no second effect only as long as its receiver keeps the inbox row that identifies it.
"""

from __future__ import annotations

from datetime import datetime

from shieldtx.ports.hand_over import EventPosition, Sibling


def may_be_forgotten(
    settled_at: datetime | None,
    position: EventPosition | Sibling | None = None,
    *,
    since: datetime | None,
) -> bool:
    """Return whether a receiver may have handled an event and purged its row.

    The receiver may have purged rows that it settled before `since`; None: it purges nothing. For
    an event that may have been sent more than once, the time of writing counts: the first copy may
    have been handled then.
    """
    if since is None:
        return False
    is_old = settled_at is not None and settled_at < since
    return is_old or (position is not None and position.unconfirmed and position.written_at < since)
