"""Every error that shieldtx raises, as one tree.

::

    ShieldTxError
    ├── ConfigurationError          a setting, name or declaration that cannot work
    │   ├── UnknownEventType
    │   ├── HandlerConflict
    │   ├── SchemaMismatch
    │   └── TopicMissing
    ├── EventRefused                a bad event, refused before its INSERT; `.field` names it
    │   ├── PayloadRefused
    │   └── TooLarge
    ├── BacklogExceeded             too many events of the topic wait to be sent; try again later
    ├── TransactionRefused          the caller's transaction cannot store the event safely
    │   └── LateTransaction         its half message has been given up meanwhile
    ├── IllegalTransition           a status change that the lifecycle does not list
    ├── LeaseLost                   another process has taken over the row or the shard
    ├── UpgradeBlocked              other transactions kept the tables locked for too long
    ├── AlreadyRunning              another run of the same reconciliation is in progress
    │   └── NameTaken               a run of another configuration uses the same name
    ├── BrokerError
    │   └── BrokerUnavailable       an outage: pause without counting an attempt
    ├── UndecodableRecord           a record that is not an event; parked with its bytes
    │   └── NotAuthorised           a rollback from a source that may not refuse the event
    ├── UnknownSchemaVersion        a payload of a version that this release cannot read; it waits
    └── HandlerError                raised by a handler, or by a check of its call
        ├── UpcastFailed            an upcaster raised, or returned a payload that does not fit
        ├── LocalRollbackFailed     the local rollback of a failed event raised; retried later
        ├── Refused                 a business refusal that no further attempt would change
        └── NothingToCompensate     a rollback of an event that this service never wrote
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID


def _made(kind: type[ShieldTxError], *args: Any) -> ShieldTxError:
    """Make an error without its constructor, which takes other arguments than `args`."""
    return kind.__new__(kind, *args)


class ShieldTxError(Exception):
    """The base class of every error that shieldtx raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle an error by its message and fields, whatever its constructor takes."""
        return _made, (type(self), *self.args), vars(self)


class ConfigurationError(ShieldTxError):
    """A setting, a name or a declaration that cannot work."""


class UnknownEventType(ConfigurationError):
    """The application has not declared the type of an event."""


class HandlerConflict(ConfigurationError):
    """One consumer group has two handlers for the same event type and kind."""


class SchemaMismatch(ConfigurationError):
    """The tables of the database are older or newer than this version of shieldtx needs."""


class TopicMissing(ConfigurationError):
    """A topic that a worker reads or writes does not exist on the broker."""


class EventRefused(ShieldTxError):
    """An event must not be stored; nothing was written. See `field` and `problem`."""

    def __init__(self, field: str, problem: str) -> None:
        """Name the `field` of the event, and its `problem`."""
        super().__init__(f"event refused, {field}: {problem}")
        self.field = field
        self.problem = problem


class PayloadRefused(EventRefused):
    """A payload that does not fit the declared type, or that JSON text cannot represent."""

    raised_by: Exception | None = None
    """The error of the application's validator that has refused it, if one has.

    It is no part of the message, because its text may contain a part of the payload.
    """


class TooLarge(EventRefused):
    """A field above its limit in bytes."""


class BacklogExceeded(ShieldTxError):
    """Too many events of a topic wait to be sent; nothing was written."""

    def __init__(self, topic: str, backlog: int, limit: int) -> None:
        """Name the `topic`, a lower bound of its waiting events (`backlog`), and the `limit`."""
        super().__init__(
            f"topic {topic}: {backlog} events or more wait to be sent, the limit is {limit}, so no "
            "further one was written. Try again later; `shieldtx status` shows whether the relay "
            "lags. The limit is SHIELDTX_BACKLOG_LIMIT or the event type's backlog_limit"
        )
        self.topic = topic
        self.backlog = backlog
        self.limit = limit


class TransactionRefused(ShieldTxError):
    """A transaction that cannot store the event safely; the message names the remedy."""


class LateTransaction(TransactionRefused):
    """A local transaction came after its half message had been given up, and must not commit."""


class IllegalTransition(ShieldTxError):
    """A status change that the lifecycle does not list."""

    def __init__(self, message: str, event_ids: Sequence[UUID] = ()) -> None:
        """Name the rows in the message, and the ids of those that could not change."""
        super().__init__(message)
        self.event_ids = tuple(event_ids)


class LeaseLost(ShieldTxError):
    """Another process has taken over the row, the shard or the run of this process."""


class UpgradeBlocked(ShieldTxError):
    """Other transactions kept the tables locked for as long as an upgrade waits for them."""


class AlreadyRunning(ShieldTxError):
    """Another run of the same reconciliation is in progress, here or on another machine."""


class NameTaken(AlreadyRunning):
    """A run of another configuration with the same name is in progress."""


class BrokerError(ShieldTxError):
    """The broker answered with an error."""


class BrokerUnavailable(BrokerError):
    """The broker is unreachable or does not respond; the event is not the cause."""


class UndecodableRecord(ShieldTxError):
    """A record that is not an event of shieldtx's wire format."""


class NotAuthorised(UndecodableRecord):
    """A rollback from a source that may not refuse the event."""


class UnknownSchemaVersion(ShieldTxError):
    """A payload of a schema version that this release cannot read: the event waits for another."""


class HandlerError(ShieldTxError):
    """A handler failed, or broke a rule of its transaction."""


class UpcastFailed(HandlerError):
    """An upcaster raised an error, or the payload that it returned does not fit."""

    raised_by: Exception | None = None
    """The error of the application's validator that has refused the payload, if one has."""


class LocalRollbackFailed(HandlerError):
    """The local rollback of a failed event raised an error; nothing was changed."""


class Refused(HandlerError):
    """A permanent business refusal: raise it in a handler to give up without further attempts."""


class NothingToCompensate(HandlerError):
    """A rollback names an event of which this service has no record."""
