"""shieldtx: the transactional outbox for Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shieldtx.app.application import ShieldTx
    from shieldtx.app.in_process import InProcessWorkers
    from shieldtx.consumer.foreign_topic import ForeignEvent, ForeignTopic
    from shieldtx.consumer.handlers import ConsumerGroup
    from shieldtx.domain.events import Event, new_event_id
    from shieldtx.domain.retry import RetryPolicy
    from shieldtx.domain.schedule import LEVELS
    from shieldtx.domain.states import InboxStatus, LocalOutcome, Operation, OutboxStatus, TxKind
    from shieldtx.errors import (
        BacklogExceeded,
        BrokerError,
        BrokerUnavailable,
        ConfigurationError,
        EventRefused,
        HandlerConflict,
        HandlerError,
        IllegalTransition,
        LateTransaction,
        LeaseLost,
        LocalRollbackFailed,
        NothingToCompensate,
        PayloadRefused,
        Refused,
        SchemaMismatch,
        ShieldTxError,
        TooLarge,
        TopicMissing,
        TransactionRefused,
        UnknownEventType,
        UpcastFailed,
    )
    from shieldtx.hooks.contexts import ConsumeContext, SendContext
    from shieldtx.outbox.delayed_events import DelayedEvents
    from shieldtx.outbox.outbox import Outbox
    from shieldtx.ports.broker import DeliveryOutcome, ReceivedRecord
    from shieldtx.ports.delayed_events import BizKey, Change, ChangeResult, DelayedEvent
    from shieldtx.ports.inbox import AttemptOutcome
    from shieldtx.settings.settings import Settings

__all__ = [
    "ShieldTx",
    "Settings",
    "Event",
    "Outbox",
    "DelayedEvents",
    "DelayedEvent",
    "BizKey",
    "Change",
    "ChangeResult",
    "LEVELS",
    "ConsumerGroup",
    "InProcessWorkers",
    "ForeignTopic",
    "ForeignEvent",
    "ReceivedRecord",
    "RetryPolicy",
    "SendContext",
    "DeliveryOutcome",
    "ConsumeContext",
    "AttemptOutcome",
    "Operation",
    "TxKind",
    "LocalOutcome",
    "OutboxStatus",
    "InboxStatus",
    "ShieldTxError",
    "ConfigurationError",
    "UnknownEventType",
    "HandlerConflict",
    "SchemaMismatch",
    "TopicMissing",
    "EventRefused",
    "PayloadRefused",
    "TooLarge",
    "BacklogExceeded",
    "TransactionRefused",
    "LateTransaction",
    "IllegalTransition",
    "LeaseLost",
    "BrokerError",
    "BrokerUnavailable",
    "HandlerError",
    "Refused",
    "UpcastFailed",
    "LocalRollbackFailed",
    "NothingToCompensate",
    "new_event_id",
]

_HOMES = {
    "ShieldTx": "app.application",
    "InProcessWorkers": "app.in_process",
    "ForeignEvent": "consumer.foreign_topic",
    "ForeignTopic": "consumer.foreign_topic",
    "ConsumerGroup": "consumer.handlers",
    "Event": "domain.events",
    "new_event_id": "domain.events",
    "RetryPolicy": "domain.retry",
    "LEVELS": "domain.schedule",
    "InboxStatus": "domain.states",
    "LocalOutcome": "domain.states",
    "Operation": "domain.states",
    "OutboxStatus": "domain.states",
    "TxKind": "domain.states",
    "BacklogExceeded": "errors",
    "BrokerError": "errors",
    "BrokerUnavailable": "errors",
    "ConfigurationError": "errors",
    "EventRefused": "errors",
    "HandlerConflict": "errors",
    "HandlerError": "errors",
    "IllegalTransition": "errors",
    "LateTransaction": "errors",
    "LeaseLost": "errors",
    "LocalRollbackFailed": "errors",
    "NothingToCompensate": "errors",
    "PayloadRefused": "errors",
    "Refused": "errors",
    "SchemaMismatch": "errors",
    "ShieldTxError": "errors",
    "TooLarge": "errors",
    "TopicMissing": "errors",
    "TransactionRefused": "errors",
    "UnknownEventType": "errors",
    "UpcastFailed": "errors",
    "ConsumeContext": "hooks.contexts",
    "SendContext": "hooks.contexts",
    "DelayedEvents": "outbox.delayed_events",
    "Outbox": "outbox.outbox",
    "DeliveryOutcome": "ports.broker",
    "ReceivedRecord": "ports.broker",
    "BizKey": "ports.delayed_events",
    "Change": "ports.delayed_events",
    "DelayedEvent": "ports.delayed_events",
    "ChangeResult": "ports.delayed_events",
    "AttemptOutcome": "ports.inbox",
    "Settings": "settings.settings",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use.

    The command line must handle signals before an import that takes long.
    """
    if name in {home.partition(".")[0] for home in _HOMES.values()}:
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
