"""The statements that replay parked records."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    delete,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.ports.broker import ReceivedRecord
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables

INBOX: Final = "inbox"
"""The inbox in the table of purges."""

REASON: Final = "new_reason"


@built_once
def lock_record(t: Tables, d: Dialect) -> ReturningUpdate[Any]:  # noqa: ARG001  one signature for all
    """Lock a parked record that waits, and return it. Run with `record_parameters`.

    An UPDATE: in SQLite a SELECT locks nothing.
    """
    p = t.parked
    return (
        update(p)
        .where(_is_given(t), p.c.discarded_at.is_(None))
        .values(reason=p.c.reason)
        .returning(*p.c)
    )


@built_once
def note_reason(t: Tables, d: Dialect) -> Update:  # noqa: ARG001  one signature for all
    """Record why a locked record still cannot become an inbox row.

    Run with `record_parameters` and REASON.
    """
    return update(t.parked).where(_is_given(t)).values(reason=bindparam(REASON, type_=Text()))


@built_once
def remove_record(t: Tables, d: Dialect) -> Delete:  # noqa: ARG001  one signature for all
    """Remove a locked record whose event is in the inbox. Run with `record_parameters`."""
    return delete(t.parked).where(_is_given(t))


def record_parameters(*, group: str, record: ReceivedRecord, digest: str) -> dict[str, Any]:
    """Return the parameters that name a parked record."""
    return {
        "of_group": group,
        "of_topic": record.topic,
        "of_partition": record.partition,
        "of_offset": record.offset,
        "of_digest": digest,
    }


def inbox_purged_until(t: Tables) -> Select[Any]:
    """Select the time before which settled inbox rows may be purged; no row if none were."""
    return select(t.purged.c.purged_until).where(t.purged.c.purged_table == INBOX)


def _is_given(t: Tables) -> ColumnElement[bool]:
    c = t.parked.c
    return and_(
        c.consumer_group == bindparam("of_group", type_=Text()),
        c.topic == bindparam("of_topic", type_=Text()),
        c.record_partition == bindparam("of_partition", type_=Integer()),
        c.record_offset == bindparam("of_offset", type_=BigInteger()),
        c.digest == bindparam("of_digest", type_=Text()),
    )
