"""Inboxes that have lost rows of existing effects, and a repair's knowledge about this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.reconcile.repair.known_in_order import Inlet, KnownInOrder
from shieldtx.reconcile.repair.lost_rows import LostRows
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.history import Pair
from tests.verification.oracle.nights import Verdicts
from tests.verification.oracle.services import Effect

_BY_RUNS_SHARE: Final = 0.5
_LACKED: Final = (Verdict.MISSING_DOWNSTREAM, Verdict.STUCK)


@dataclass(frozen=True, kw_only=True, slots=True)
class LostInbox:
    """Events that the groups of a service have applied, without any row left."""

    service: str
    until: float
    """Everything sent by then is lost, in minutes of the history."""
    by_runs: frozenset[tuple[Inlet, Pair]]
    """The pairs that good runs had found in order.

    Empty: a comparison of the inbox with an earlier run shows the loss.
    """
    effects: frozenset[Effect]

    def known(self, began: datetime) -> dict[str, Any]:
        """Return a repair's knowledge of the loss, as arguments of its policy."""
        until = began + timedelta(minutes=self.until)
        if not self.by_runs:
            return {"lost_rows": LostRows(whole_since={self.service: until})}
        return {"in_order": KnownInOrder(until={inlet: until for inlet, _ in self.by_runs})}


def a_lost_inbox(r: Random, rows: Rows, found: Verdicts) -> LostInbox | None:
    """Choose a service and a time; None: no group lacks an event that it may have lost."""
    lacked = sorted(_lacked(rows, found), key=lambda each: each[0])
    if not lacked:
        return None
    of, _ = r.choice(lacked)
    lacked = [each for each in lacked if each[0].downstream == of.downstream]
    by_runs = r.random() < _BY_RUNS_SHARE
    # Runs know what was acknowledged, but not what may have been sent.
    sent = {
        pair: at
        for pair, row in lacked
        if (at := row["settled_at"] if by_runs else _first_copy(row)) is not None
    }
    if not sent:
        return None
    until = r.choice(sorted(sent.values())) + 0.001
    lost = [(pair, row) for pair, row in lacked if sent.get(pair, until) < until]
    return LostInbox(
        service=of.downstream,
        until=until,
        by_runs=frozenset((_inlet(pair, row), pair) for pair, row in lost if by_runs),
        effects=frozenset((pair.downstream, pair.group, pair.event_id) for pair, _ in lost),
    )


def _lacked(rows: Rows, found: Verdicts) -> Iterator[tuple[Pair, Row]]:
    """Yield what groups lack of the events that may have been sent, and their outbox rows."""
    sent = {(row["service"], row["event_id"]): row for row in rows.outbox}
    received = {(row["service"], row["group"], row["event_id"]) for row in rows.inbox}
    for pair, verdict in found.items():
        row = sent.get((pair.upstream, pair.event_id))
        is_there = (pair.downstream, pair.group, pair.event_id) in received
        if row is None or is_there or verdict not in _LACKED or pair.kind != TxKind.COMMIT:
            continue
        if row["status"] in {OutboxStatus.PROCESSED, OutboxStatus.PROCESSING}:
            yield pair, row


def _first_copy(row: Row) -> float:
    """Return when the first copy of an event may have been sent."""
    written: float = row["created_at"]
    if row.get("unconfirmed"):
        return written
    if row["settled_at"] is not None:
        return float(row["settled_at"])
    return max(written, row.get("due_at") or written)


def _inlet(pair: Pair, row: Row) -> Inlet:
    kind = TxKind(pair.kind)
    return Inlet(pair.upstream, pair.downstream, pair.group, kind, row["topic"], row["event_type"])
