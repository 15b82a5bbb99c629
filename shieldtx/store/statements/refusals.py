"""The statement that refuses a parked event for an operator."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import update
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.events import storable
from shieldtx.domain.states import INBOX, InboxStatus, TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.inbox import is_row
from shieldtx.store.tables import Tables


def refuse(
    t: Tables, d: Dialect, *, group: str, event_id: UUID, source: str, reason: str
) -> ReturningUpdate[tuple[str]]:
    """Settle an event that is still DEAD as refused: its rollback event is written with it."""
    i = t.inbox
    sources = INBOX.sources_of(InboxStatus.MAX_RECONSUMED, among=(InboxStatus.DEAD,))
    return (
        update(i)
        .where(is_row(t, group, event_id, source), i.c.status.in_([s.value for s in sources]))
        .where(i.c.tx_kind == TxKind.COMMIT.value)
        .values(
            status=InboxStatus.MAX_RECONSUMED.value,
            settled_at=d.now(),
            last_error=storable(reason),
            awaits_operator=False,
        )
        .returning(i.c.status)
    )
