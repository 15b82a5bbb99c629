"""Every error that shieldtx raises, as one tree.

::

    ShieldTxError
    ├── ConfigurationError          settings, names or declarations that cannot work
    │   ├── UnknownEventType
    │   ├── HandlerConflict
    │   ├── SchemaMismatch
    │   └── TopicMissing
    ├── EventRefused                a bad event, refused before its INSERT; `.field` names it
    │   ├── PayloadRefused
    │   └── TooLarge
    ├── BacklogExceeded             too many events of the topic wait to be sent; try again later
    ├── TransactionRefused          no transaction of the caller that takes the event for certain
    │   └── LateTransaction         its half message has been given up meanwhile
    ├── IllegalTransition           a status change that the lifecycle does not list
    ├── LeaseLost                   somebody else owns the row or the shard by now
    ├── UpgradeBlocked              other transactions kept the tables locked for too long
    ├── AlreadyRunning              another run of the same reconciliation is at work
    │   └── NameTaken               it judges something else under the same name
    ├── BrokerError
    │   └── BrokerUnavailable       an outage: pause, burn no attempt
    ├── UndecodableRecord           a record that is no event; parked with its bytes
    │   └── NotAuthorised           a rollback from a source that may not refuse the event
    └── HandlerError                what a handler raises about its event
        ├── LocalRollbackFailed     the local rollback of a failed event raised; tried again later
        ├── Refused                 a business refusal that no further attempt would change
        └── NothingToCompensate     a rollback of an event that this service never wrote
"""

from __future__ import annotations

from typing import Any


def _made(kind: type[ShieldTxError], *args: Any) -> ShieldTxError:
    """Make an error without its constructor, which takes other arguments than `args`."""
    return kind.__new__(kind, *args)


class ShieldTxError(Exception):
    """The root: whoever catches it catches all that shieldtx raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled by message and fields, whatever a constructor takes."""
        return _made, (type(self), *self.args), vars(self)


class ConfigurationError(ShieldTxError):
    """A setting, a name or a declaration that cannot work."""


class UnknownEventType(ConfigurationError):
    """An event of a type that the application has not declared."""


class HandlerConflict(ConfigurationError):
    """Two handlers for the same event type and kind in one consumer group."""


class SchemaMismatch(ConfigurationError):
    """The database's tables are older or newer than this version of shieldtx needs."""


class TopicMissing(ConfigurationError):
    """A topic that a consumer should read does not exist on the broker."""


class EventRefused(ShieldTxError):
    """An event that must not be stored; nothing was written."""

    def __init__(self, field: str, problem: str) -> None:
        """Name the `field` of the event and the `problem` that it has."""
        super().__init__(f"event refused, {field}: {problem}")
        self.field = field
        self.problem = problem


class PayloadRefused(EventRefused):
    """A payload that does not fit the declared type or that no JSON text can carry."""


class TooLarge(EventRefused):
    """A field above its limit in bytes."""


class BacklogExceeded(ShieldTxError):
    """Too many events of a topic wait to be sent; nothing was written."""

    def __init__(self, topic: str, backlog: int, limit: int) -> None:
        """Name the `topic`, at least how many events of it wait, and how many may."""
        super().__init__(
            f"topic {topic}: {backlog} events or more wait to be sent, the limit is {limit}, so no "
            "further one was written. Try again later; `shieldtx status` shows whether the relay "
            "lags. The limit is SHIELDTX_BACKLOG_LIMIT or the event type's backlog_limit"
        )
        self.topic = topic
        self.backlog = backlog
        self.limit = limit


class TransactionRefused(ShieldTxError):
    """A transaction that cannot take the event for certain; the message says what to do."""


class LateTransaction(TransactionRefused):
    """A local transaction that came when its half message had been given up: it must not commit."""


class IllegalTransition(ShieldTxError):
    """A status change that the lifecycle does not list."""


class LeaseLost(ShieldTxError):
    """Another process has taken over what this one was working on."""


class UpgradeBlocked(ShieldTxError):
    """Other transactions kept the tables locked for as long as an upgrade waits for them."""


class AlreadyRunning(ShieldTxError):
    """Another run of the same reconciliation is at work, here or on another machine."""


class NameTaken(AlreadyRunning):
    """The run at work is one of another configuration that has the same name."""


class BrokerError(ShieldTxError):
    """The broker answered with an error."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached or does not answer; no event is to blame."""


class UndecodableRecord(ShieldTxError):
    """A record that is not an event of shieldtx's wire format."""


class NotAuthorised(UndecodableRecord):
    """A rollback from a source that is not among those which may refuse the event."""


class HandlerError(ShieldTxError):
    """Something a handler says about the event in its hands."""


class LocalRollbackFailed(HandlerError):
    """The local rollback of a failed event raised an error; nothing was changed."""


class Refused(HandlerError):
    """A business refusal for good: raise it in a handler to give up without further attempts."""


class NothingToCompensate(HandlerError):
    """A rollback that names an event which this service has no record of."""
