"""shieldtx: the transactional outbox for Python."""

from shieldtx.app import ShieldTx
from shieldtx.config import Settings
from shieldtx.errors import EventRefused, Refused, ShieldTxError
from shieldtx.events import Event, new_event_id
from shieldtx.handlers import ConsumerGroup
from shieldtx.outbox import Outbox
from shieldtx.retry import RetryPolicy
from shieldtx.states import InboxStatus, Operation, OutboxStatus, TxKind

__all__ = [
    "ShieldTx",
    "Settings",
    "Event",
    "Outbox",
    "ConsumerGroup",
    "RetryPolicy",
    "Operation",
    "TxKind",
    "OutboxStatus",
    "InboxStatus",
    "ShieldTxError",
    "EventRefused",
    "Refused",
    "new_event_id",
]
