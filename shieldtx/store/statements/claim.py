"""The claim: the statement that selects the next rows for a relay and leases them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Integer,
    Row,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import OutboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.low_water_mark import ClaimSnapshot
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.envelope_columns import (
    ENVELOPE_WIDTH,
    envelope_columns,
    envelope_of,
)
from shieldtx.store.tables import Tables, in_main_queue

RELAY = bindparam("of_relay", type_=Text())
"""The relay whose shards a statement reads."""
_TOKEN = bindparam("with_token", type_=Uuid())
_BYTES = bindparam("bytes_at_most", type_=BigInteger())
_SOURCE = bindparam("of_source", type_=Text())
_LIMIT = bindparam("at_most", type_=Integer())
_PART = bindparam("at_most_of_each", type_=Integer())
_START = bindparam("start_at", type_=BigInteger())
_KNOWN = bindparam("known_shards", type_=BigInteger())
_FENCE = bindparam("fence", type_=BigInteger())
_FENCED = bindparam("fenced_shards", type_=BigInteger())


@built_once
def claim(t: Tables, d: Dialect, *, of_source: bool = False) -> ReturningUpdate[Any]:
    """Lease rows of the relay's shards to the relay, up to two limits, and return them.

    One limit counts rows, the other the bytes of their payloads; one row is claimed whatever its
    size. With `of_source`, rows of other sources are not claimed.

    Run with `parameters`; `claim_row` reads each row.
    """
    leased = leased_shards(t, d)
    shards = select(leased.c.shard)
    # Evaluated once: while no key is held, no row is checked for a held key.
    on_hold = select(exists(shards.where(_has_a_key_on_hold(t, leased))).label("on_hold"))
    held = on_hold.cte("held").prefix_with("MATERIALIZED")
    # A row's lease ends with the lease of its shard: the next owner of the shard may take both.
    until = func.min(leased.c.lease_until)
    # Waiting rows first: they are older, and each that waits for its retry blocks its key.
    ready = union_all(
        select(_due_waiting(t, d, leased, held, of_source=of_source).subquery()),
        select(_next_in_main_queue(t, d, leased, held, of_source=of_source).subquery()),
    ).limit(_LIMIT)
    # Materialized: every plan chooses the rows once.
    sized = ready.cte("ready").prefix_with("MATERIALIZED")
    before = func.sum(sized.c.size).over(rows=(None, -1)).label("before")
    summed = select(sized.c.address, before).subquery("summed")
    fits = func.coalesce(summed.c.before, 0) < _BYTES
    chosen = select(summed.c.address).where(fits).cte("chosen").prefix_with("MATERIALIZED")
    o = t.outbox
    return (
        update(o)
        .where(d.is_in_rows(d.address(o), select(chosen.c.address)), _is_claimable(o, d))
        .values(
            status=OutboxStatus.PROCESSING.value,
            attempts=o.c.attempts + 1,
            # The former owner of a lease that ran out may have sent the row.
            unconfirmed=or_(o.c.unconfirmed, o.c.status == OutboxStatus.PROCESSING.value),
            lease_token=_TOKEN,
            lease_until=select(until).scalar_subquery(),
        )
        .returning(
            *envelope_columns(o, "created_at"),
            o.c.seq,
            o.c.shard,
            o.c.attempts,
            o.c.unconfirmed,
            o.c.waiting,
            case((and_(o.c.waiting, not_(o.c.holds_key)), o.c.due_at)),
            select(d.seconds_until(until)).scalar_subquery(),
            d.address(o),
            d.claim_snapshot(leased, select(held.c.on_hold).scalar_subquery(), chosen),
        )
    )


class ClaimRow(NamedTuple):
    """A claimed row; the fields are in the order of the statement's columns."""

    envelope: Envelope
    seq: int
    shard: int
    attempts: int
    unconfirmed: bool
    waiting: bool
    """The row was not in the main queue: it waited for its retry, or has a chosen delay."""
    chosen_due_at: datetime | None
    """None unless the delay was chosen."""
    lease_left_s: float
    address: str
    snapshot: str | None
    """The input of `snapshot_of`, the same in every row."""


def claim_row(row: Row[*tuple[Any, ...]]) -> ClaimRow:
    """Name the columns of a row of `claim`."""
    # Built for each row, like an envelope: `ClaimRow(...)` takes twice as long.
    return tuple.__new__(ClaimRow, (envelope_of(row), *row[ENVELOPE_WIDTH:]))


def parameters(
    *,
    relay: str,
    token: UUID,
    limit: int,
    limit_bytes: int,
    start: int,
    known: int,
    fence: int = 0,
    fenced: int = 0,
    source: str | None = None,
) -> dict[str, Any]:
    """Return the parameters of a claim; pass `source` for a claim built with `of_source`.

    The claim starts at the number `start` of the sequence, if `known` is the digest of the relay's
    shards and no key is held. Otherwise the claim starts after `fence`, if `fenced` is their
    digest, and at the beginning if not.
    """
    return {
        RELAY.key: relay,
        _TOKEN.key: token,
        _LIMIT.key: limit,
        _BYTES.key: limit_bytes,
        **({} if source is None else {_SOURCE.key: source}),
        # So that the waiting rows of a full shard leave room for other shards.
        _PART.key: max(1, limit // 4),
        _START.key: start,
        _KNOWN.key: known,
        _FENCE.key: fence,
        _FENCED.key: fenced,
    }


def snapshot_of(text: str | None) -> ClaimSnapshot | None:
    """Read the JSON of `Dialect.claim_snapshot`; None where there is none."""
    if text is None:
        return None
    seen = json.loads(text)
    return ClaimSnapshot(
        shards=seen["shards"],
        has_blocked_keys=seen["has_blocked_keys"],
        # The JSON holds the numbers of transactions as texts.
        oldest_running=int(seen["oldest_running"]),
        next_to_run=int(seen["next_to_run"]),
        chosen=seen["chosen"],
    )


def leased_shards(t: Tables, d: Dialect) -> CTE:
    """Select the relay's shards, locked so that their owner stays until the claim commits."""
    s = t.shard
    return (
        select(s.c.shard, s.c.epoch, s.c.lease_until)
        .where(s.c.owner == RELAY, s.c.lease_until > d.now())
        .order_by(s.c.shard)
        .with_for_update(read=True)
        .cte("leased")
    )


def _next_in_main_queue(
    t: Tables, d: Dialect, leased: CTE, held: CTE, *, of_source: bool
) -> Select[Any]:
    """Select the next rows of the main queue whose key is not held, in the order of writing.

    Rows that were written together, and are stored together, are so claimed together. Rows of held
    keys are few here, as `store.blocked` removes them. Until then, as after a bulk load, the scan
    starts after them (`store.fence`). Without a fence, the scan looks up keys instead of rows.
    """
    o = t.outbox.alias("line")
    on_hold = select(held.c.on_hold).scalar_subquery()
    rows, earlier = d.look_up(o, first_holder(t, o).where(on_hold))
    return (
        select(d.address(o).label("address"), _size(o, d))
        .select_from(rows)
        .where(*_is_of_source(o, of_source=of_source))
        .where(in_main_queue(o))
        .where(o.c.seq >= _start(d, leased, held), d.is_in_rows(o.c.shard, select(leased.c.shard)))
        .where(_is_claimable(o, d), func.coalesce(earlier >= o.c.seq, true()))
        .order_by(o.c.seq)
        .limit(_LIMIT)
    )


def _start(d: Dialect, leased: CTE, held: CTE) -> ColumnElement[int]:
    on_hold = select(held.c.on_hold).scalar_subquery()
    shards = d.digest(leased)
    holds = and_(shards == _KNOWN, not_(on_hold))
    start = case((holds, _START), (shards == _FENCED, _FENCE + 1), else_=literal(0, BigInteger()))
    return select(start).scalar_subquery()


def _has_a_key_on_hold(t: Tables, leased: CTE) -> ColumnElement[bool]:
    o = t.outbox.alias("on_hold")
    return exists().where(o.c.shard == leased.c.shard, o.c.settled_at.is_(None), o.c.holds_key)


def _due_waiting(t: Tables, d: Dialect, leased: CTE, held: CTE, *, of_source: bool) -> Select[Any]:
    """Select the due waiting rows of each shard: retries and chosen delays."""
    o = t.outbox.alias("aside")
    rows = (
        select(d.address(o).label("address"), _size(o, d), o.c.shard)
        .where(*_is_of_source(o, of_source=of_source))
        .where(o.c.settled_at.is_(None), o.c.waiting, o.c.due_at <= d.now())
        .where(_is_claimable(o, d), not_(_is_blocked(t, o, held)))
        .order_by(o.c.due_at)
        .with_for_update(skip_locked=True)
    )
    joined, right = d.first_of_each(leased, rows, "shard", _PART)
    return select(right.c.address, right.c.size).select_from(joined).limit(_LIMIT)


def _size(o: Any, d: Dialect) -> ColumnElement[int]:
    return d.bytes_of(o.c.payload).label("size")


def _is_of_source(o: Any, *, of_source: bool) -> list[ColumnElement[bool]]:
    return [o.c.source == _SOURCE] if of_source else [true()]


def _is_claimable(o: Any, d: Dialect) -> ColumnElement[bool]:
    lease_ran_out = and_(o.c.status == OutboxStatus.PROCESSING.value, o.c.lease_until <= d.now())
    return or_(o.c.status == OutboxStatus.INIT.value, lease_ran_out)


def _is_blocked(t: Tables, o: Any, held: CTE) -> ColumnElement[bool]:
    """Whether an earlier row of the source holds the key: it waits for its retry, or is blocked.

    Every plan does one index probe per row, whatever the statistics of rows that hold their keys.
    """
    earlier = first_holder(t, o).scalar_subquery() < o.c.seq
    on_hold = select(held.c.on_hold).scalar_subquery()
    return and_(on_hold, func.coalesce(earlier, false()))


def first_holder(t: Tables, o: Any, *, is_blocked: bool = False) -> Select[Any]:
    """Select the number of the first row of the same source that holds the key of `o`.

    With `is_blocked`, select the first blocked row. Rows of other sources do not count: no relay of
    this source settles them, so they would hold the key forever.
    """
    holder = t.outbox.alias("first_holder")
    return (
        select(holder.c.seq)
        .where(not_(holder.c.waiting) if is_blocked else true())
        .where(holder.c.shard == o.c.shard, holder.c.key == o.c.key)
        .where(holder.c.source == o.c.source)
        .where(holder.c.settled_at.is_(None), holder.c.holds_key)
        .order_by(holder.c.seq)
        .limit(1)
    )
