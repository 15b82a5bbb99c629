"""What the services need from outside, as protocols: brokers and stores are their adapters."""

from shieldtx.ports.broker import (
    Broker,
    Delivery,
    Outcome,
    Publisher,
    ReceivedRecord,
    Record,
    Subscriber,
    TopicAdmin,
    TopicState,
)
from shieldtx.ports.inbox import (
    Arrival,
    Attempt,
    InboxStore,
    Original,
    Parked,
    Receipt,
)
from shieldtx.ports.outbox import (
    Claim,
    Claimed,
    Holding,
    LeaseStore,
    OutboxStore,
    Retry,
    Settlement,
)

__all__ = [
    "Record",
    "ReceivedRecord",
    "Outcome",
    "Delivery",
    "Publisher",
    "Subscriber",
    "TopicState",
    "TopicAdmin",
    "Broker",
    "Claimed",
    "Claim",
    "Retry",
    "Settlement",
    "OutboxStore",
    "Holding",
    "LeaseStore",
    "Arrival",
    "Parked",
    "Receipt",
    "Attempt",
    "Original",
    "InboxStore",
]
