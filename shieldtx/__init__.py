"""shieldtx: the transactional outbox for Python."""

from shieldtx.app import ShieldTx
from shieldtx.config import Settings
from shieldtx.delayed import Delayed
from shieldtx.delays import LEVELS
from shieldtx.errors import EventRefused, Refused, ShieldTxError
from shieldtx.events import Event, new_event_id
from shieldtx.handlers import ConsumerGroup
from shieldtx.hooks import ConsumeContext, SendContext
from shieldtx.outbox import Outbox
from shieldtx.ports import BizKey, Change, DelayedEvent, Verdict
from shieldtx.retry import RetryPolicy
from shieldtx.states import InboxStatus, LocalOutcome, Operation, OutboxStatus, TxKind

__all__ = [
    "ShieldTx",
    "Settings",
    "Event",
    "Outbox",
    "Delayed",
    "DelayedEvent",
    "BizKey",
    "Change",
    "Verdict",
    "LEVELS",
    "ConsumerGroup",
    "RetryPolicy",
    "SendContext",
    "ConsumeContext",
    "Operation",
    "TxKind",
    "LocalOutcome",
    "OutboxStatus",
    "InboxStatus",
    "ShieldTxError",
    "EventRefused",
    "Refused",
    "new_event_id",
]
