"""When an inbox row may be processed: due, leased to no worker, and first of its key."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, exists, not_, or_

from shieldtx.domain.states import TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


def is_free(i: Any, d: Dialect) -> ColumnElement[bool]:
    """Whether a row is due, and leased to no worker."""
    return and_(i.c.due_at <= d.now(), or_(i.c.lease_until.is_(None), i.c.lease_until <= d.now()))


def is_blocked(t: Tables, i: Any) -> ColumnElement[bool]:
    """Whether an earlier row of the key, or the event that this row takes back, is unfinished.

    A rollback that waits for its event blocks no row: the two could wait for each other.
    """
    earlier = t.inbox.alias("earlier")
    same_key = exists().where(
        earlier.c.consumer_group == i.c.consumer_group,
        earlier.c.settled_at.is_(None),
        earlier.c.topic == i.c.topic,
        earlier.c.key == i.c.key,
        earlier.c.seq < i.c.seq,
        not_(_waits_for_its_event(t, earlier)),
    )
    return or_(same_key, _waits_for_its_event(t, i))


def _waits_for_its_event(t: Tables, i: Any) -> ColumnElement[bool]:
    event = t.inbox.alias()
    return exists().where(
        event.c.consumer_group == i.c.consumer_group,
        event.c.settled_at.is_(None),
        i.c.tx_kind == TxKind.ROLLBACK.value,
        # Of two rollbacks that name each other, neither waits.
        event.c.tx_kind == TxKind.COMMIT.value,
        event.c.event_id == i.c.causation_id,
        # A rollback that names no source takes back an event of its own service.
        or_(i.c.causation_source.is_(None), event.c.source == i.c.causation_source),
    )
