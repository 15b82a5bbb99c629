"""Rows of the outbox and the inbox in any state, as shieldtx leaves them there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shieldtx import new_event_id
from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind

WRITTEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SETTLED = WRITTEN + timedelta(minutes=1)
LEASED_UNTIL = WRITTEN + timedelta(minutes=2)

_REASONS = {
    OutboxStatus.FAILED: "the topic is gone",
    OutboxStatus.UNRESOLVED: "nobody can tell",
    InboxStatus.MAX_RECONSUMED: "sold out",
    InboxStatus.DEAD: "the bank is away",
}


def outbox_row(status: OutboxStatus, **others: Any) -> dict[str, Any]:
    """Return the columns of an outbox row of this status."""
    is_settled = status in OUTBOX.settled
    row = _event("orders") | {
        "shard": 0,
        "status": status.value,
        "waiting": status is OutboxStatus.HALF,
        "holds_key": False,
        "unconfirmed": False,
        "created_at": WRITTEN,
        "settled_at": SETTLED if is_settled else None,
        "last_error": _REASONS.get(status),
    }
    is_half = status in {OutboxStatus.HALF, OutboxStatus.UNRESOLVED, OutboxStatus.DISCARDED}
    row["checks"] = 1 if is_half else None
    row["check_at"] = SETTLED if status is OutboxStatus.HALF else None
    return row | _lease(is_leased=status is OutboxStatus.PROCESSING) | others


def inbox_row(status: InboxStatus, **others: Any) -> dict[str, Any]:
    """Return the columns of an inbox row of this status; a DEAD one is a rollback."""
    is_settled = status in INBOX.settled
    kind = TxKind.ROLLBACK if status is InboxStatus.DEAD else TxKind.COMMIT
    row = _event("stock", kind) | {
        "consumer_group": "orders",
        "event_time": WRITTEN,
        "status": status.value,
        "received_at": WRITTEN,
        "settled_at": SETTLED if is_settled else None,
        "last_error": _REASONS.get(status),
        "together": False,
        "awaits_operator": status is InboxStatus.DEAD,
        "causation_id": new_event_id() if kind is TxKind.ROLLBACK else None,
        "causation_source": "orders" if kind is TxKind.ROLLBACK else None,
    }
    return row | _lease(is_leased=status is InboxStatus.PROCESSING) | others


def _event(source: str, kind: TxKind = TxKind.COMMIT) -> dict[str, Any]:
    return {
        "event_id": new_event_id(),
        "source": source,
        "topic": "orders.placed",
        "event_type": "orders.placed",
        "tx_kind": kind.value,
        "operation": "INSERT",
        "key": "customer-1",
        "payload": "{}",
        "due_at": WRITTEN,
    }


def _lease(*, is_leased: bool) -> Mapping[str, Any]:
    return {
        "attempts": int(is_leased),
        "lease_token": new_event_id() if is_leased else None,
        "lease_until": LEASED_UNTIL if is_leased else None,
    }
