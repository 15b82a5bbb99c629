"""The statements that end the leases of first attempts whose workers have died."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Update, and_, select, update

from shieldtx.domain.states import InboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.inbox import GROUP
from shieldtx.store.tables import Tables

TOKENS = "with_tokens"


@built_once
def tokens_of_first_attempts(t: Tables, d: Dialect) -> Select[Any]:
    """Select the tokens of a group's first attempts whose leases last."""
    return select(t.inbox.c.lease_token).where(_is_first_attempt(t.inbox, d)).distinct()


@built_once
def end_first_attempts(t: Tables, d: Dialect) -> Update:
    """End the leases of a group's first attempts with these tokens; skip locked rows."""
    i, w = t.inbox, t.inbox.alias("leased")
    dead = d.is_in_parameter(w.c.lease_token, TOKENS)
    rows = select(w.c.seq).where(_is_first_attempt(w, d), dead).with_for_update(skip_locked=True)
    return update(i).where(i.c.seq.in_(rows)).values(lease_until=d.now())


def _is_first_attempt(i: Any, d: Dialect) -> ColumnElement[bool]:
    return and_(
        i.c.consumer_group == GROUP,
        i.c.settled_at.is_(None),
        i.c.status == InboxStatus.PROCESSING.value,
        i.c.attempts <= 1,
        i.c.lease_until > d.now(),
    )
