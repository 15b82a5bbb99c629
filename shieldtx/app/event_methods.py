"""The methods of ShieldTx that declare events, publishers, and consumer groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from shieldtx.app.declarations import Declarations
from shieldtx.consumer.handler_types import HandlerFunction
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventType, EventTypeRegistry, OnBacklog
from shieldtx.domain.events import NO_HEADERS
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.schema_versions import Upcaster
from shieldtx.domain.states import Operation
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.publish_decorator import DueAt, PayloadField, Publication

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=HandlerFunction)
U = TypeVar("U", bound=Upcaster)


class EventMethods(ABC):
    """A part of ShieldTx, which sets the attributes: applications call these methods on it."""

    _declarations: Declarations

    @property
    @abstractmethod
    def outbox(self) -> Outbox:
        """Adds events to a transaction: `outbox.add(session, Event(...))`."""

    @property
    def event_types(self) -> EventTypeRegistry:
        """The event types that the service has declared."""
        return self._declarations.event_types

    def declare(
        self,
        event_type: str,
        *,
        payload: Any = None,
        version: int | None = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog | str | None = None,
    ) -> EventType:
        """Declare an event type that is written with `outbox.add`, and return it.

        `payload` is the type of the payload (default: any JSON value). Its events carry `version`,
        which grows with each incompatible change of that type. `topic` is the logical topic
        (default: the type's name), and `retry` limits the attempts to publish. Give types one
        topic if the order between them matters. `backlog_limit` is how many events of the topic may
        wait to be sent; `on_backlog` is "refuse", "warn" or "ignore". Raises ConfigurationError for
        a name or a type that cannot be used, and for a second declaration.
        """
        return self.event_types.declare(
            event_type,
            payload=payload,
            version=version,
            topic=topic,
            retry=retry,
            backlog_limit=backlog_limit,
            on_backlog=on_backlog,
        )

    def publishes(
        self,
        event_type: str,
        *,
        key: PayloadField = None,
        biz_key: PayloadField = None,
        payload: Any = None,
        version: int | None = None,
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: DueAt[timedelta] = None,
        at: DueAt[datetime] = None,
        level: DueAt[int] = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that publishes a method's return value in its caller's transaction.

        With the return annotation `P | None`, the result None publishes no event. With `list[P]`,
        each item is an event, in the order of the list: all are added, or none and an error. A
        method without an annotation and a payload's type may not return None.
        `key` and `biz_key` are names of payload fields, or functions of the payload. One of `delay`
        (timedelta), `at` (aware datetime) and `level` (1 to 18) chooses the due time, as a value or
        in the same way. `payload` is the type of the payload, if the return annotation does not
        define it, and `version` the version of that type. Declare an event type with `declare`
        first if several methods publish it. Raises ConfigurationError for bad arguments.
        """
        publication = Publication(
            event_type=event_type,
            key=key,
            biz_key=biz_key,
            operation=operation,
            headers=headers,
            delay=delay,
            at=at,
            level=level,
        )
        return self._declarations.publishes(
            lambda: self.outbox,
            publication,
            payload=payload,
            version=version,
            topic=topic,
            retry=retry,
        )

    def upcasts(self, event_type: str, *, from_version: int) -> Callable[[U], U]:
        """Return a decorator that declares how a payload of a version becomes one of the next.

        shieldtx calls the function as `function(payload)` with JSON data (dicts, lists, texts,
        numbers) and passes its result on, for events of `from_version` that this service reads:
        handlers, compensations, local rollbacks and checks. Events without a version have version
        1. Stored and sent events do not change. Raises ConfigurationError for a second upcaster of
        the version, and where the type is declared with an older version.
        """
        return self._declarations.upcasts(event_type, from_version)

    def local_rollback(self, event_type: str) -> Callable[[H], H]:
        """Return a decorator that declares the local rollback of an event type.

        The function undoes the business data of an event that can never be delivered. It is called
        as `function(session, event)`, in the transaction that marks the event FAILED. Raises
        ConfigurationError for a second local rollback of the type.
        """
        return self._declarations.local_rollback(event_type)

    def consumer(self, group: str) -> ConsumerGroup:
        """Return the consumer group of this name, on which handlers are declared."""
        return self._declarations.consumer(group)
