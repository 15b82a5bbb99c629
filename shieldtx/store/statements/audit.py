"""The statements on the audit log, which records the actions of operators."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Delete, Insert, delete, select

from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables


def record(t: Tables, d: Dialect, *, who: str, action: str, subject: str, detail: str) -> Insert:
    """Record an operator's action. The role needs INSERT only: the id is not returned."""
    values = {"at": d.now(), "who": who, "action": action, "subject": subject, "detail": detail}
    return t.audit.insert().values(values).inline()


@built_once
def entries(t: Tables, d: Dialect) -> Insert:
    """Record actions of an operator. Run with `who`, `action`, `subject` and `detail` of each."""
    return t.audit.insert().values(at=d.now()).inline()


def purge(t: Tables, d: Dialect, *, older_than: timedelta, limit: int) -> Delete:
    """Remove expired entries among the `limit` oldest audit entries."""
    a = t.audit
    oldest = select(a.c.id).order_by(a.c.id).limit(limit).with_for_update(skip_locked=True)
    return delete(a).where(a.c.id.in_(oldest), a.c.at < d.later(-older_than))
