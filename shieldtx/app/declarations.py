"""What a service declares: its events, its handlers, and what undoes an event that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from shieldtx.consumer.handlers import ConsumerGroup, HandlerFunction
from shieldtx.domain.callables import check_callable, run
from shieldtx.domain.event_types import EventLimits, EventType, EventTypeRegistry, OnBacklog
from shieldtx.domain.events import NO_HEADERS, Envelope, physical_topic
from shieldtx.domain.payloads import decode_payload
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.publish_decorator import (
    DueAt,
    PayloadField,
    Publication,
    payload_type_of,
    publish_decorator,
)
from shieldtx.relay.relay import LocalRollback
from shieldtx.settings.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=HandlerFunction)


class Declarations:
    """What the code of a service declares on its one object, before any worker is built."""

    outbox: Outbox

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.event_types = EventTypeRegistry(
            EventLimits(payload=settings.max_payload_bytes),
            backlog_limit=settings.backlog_limit,
            on_backlog=settings.on_backlog,
        )
        self.groups: dict[str, ConsumerGroup] = {}
        self._local_rollbacks: dict[str, LocalRollback] = {}

    def declare(
        self,
        event_type: str,
        *,
        payload: Any = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog | str | None = None,
    ) -> EventType:
        """Declare an event type that is written with `outbox.add`; see EventTypeRegistry.declare."""
        return self.event_types.declare(
            event_type,
            payload=payload,
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
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: DueAt[timedelta] = None,
        at: DueAt[datetime] = None,
        level: DueAt[int] = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Publish what the decorated method returns, in the transaction that it is called with.

        `key` and `biz_key` name fields of the returned payload (or are functions of it), and so may
        the one of `delay`, `at` and `level` that chooses when the event is due. `payload` is its
        type where the return annotation does not say it. An event type that several methods publish
        is declared first, with `declare`.
        """

        def decorate(function: F) -> F:
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
            decorated = publish_decorator(self.outbox, publication)(function)
            if self.event_types.find(event_type) is None:
                kind = payload if payload is not None else payload_type_of(function)
                self.declare(event_type, payload=kind, topic=topic, retry=retry)
            elif any(given is not None for given in (payload, topic, retry)):
                raise ConfigurationError(
                    f"event type {event_type!r} is declared already: give its payload, topic and "
                    "retry once, to shield.declare, and leave them out here"
                )
            return decorated

        return decorate

    def local_rollback(self, event_type: str) -> Callable[[H], H]:
        """Declare what undoes the business data of an event that can never be delivered.

        It is called as `function(session, event)` in the transaction that marks the event FAILED.
        """

        def decorate(function: H) -> H:
            if event_type in self._local_rollbacks:
                raise ConfigurationError(f"event type {event_type!r} has two local rollbacks")
            what = f"local rollback of event type {event_type!r}"
            check_callable(function, what=what, call="local_rollback(session, event)")
            self._local_rollbacks[event_type] = partial(self._roll_back_locally, function)
            return function

        return decorate

    def consumer(self, group: str) -> ConsumerGroup:
        """Return the consumer group of this name, to declare its handlers on."""
        if group not in self.groups:
            self.groups[group] = ConsumerGroup(group, self.event_types)
        return self.groups[group]

    def topics(self) -> list[str]:
        """Return the broker's names of all topics that this service writes or reads, sorted."""
        prefix = self.settings.topic_prefix
        named = {(t.topic, kind) for t in self.event_types for kind in TxKind}
        for group in self.groups.values():
            # A group that gives up writes to the rollback topic of what it reads.
            named |= {(topic, kind) for topic, _ in group.subscriptions() for kind in TxKind}
        return sorted(physical_topic(prefix, topic, kind) for topic, kind in named)

    def topics_of(self, group: str) -> list[str]:
        """Return the broker's names of the topics that a declared group reads."""
        subscriptions = self._declared(group).subscriptions()
        return [physical_topic(self.settings.topic_prefix, t, kind) for t, kind in subscriptions]

    def group_id(self, group: str) -> str:
        """Return the broker's name of a consumer group."""
        return f"{self.settings.kafka_group_prefix}{group}"

    def handled_by(self, group: str) -> AbstractSet[tuple[str, TxKind]]:
        """Return the event types and kinds that a group has handlers for in this application."""
        declared = self.groups.get(group)
        return frozenset() if declared is None else declared.handled()

    def _declared(self, group: str) -> ConsumerGroup:
        declared = self.groups.get(group)
        if declared is None or not declared.subscriptions():
            known = ", ".join(sorted(self.groups)) or "none"
            raise ConfigurationError(
                f"consumer group {group!r} has no handlers in this application (groups: {known})"
            )
        return declared

    def _retry_of(self, event_type: str) -> RetryPolicy:
        # A rollback event is of a type that its upstream declared, not this service.
        declared = self.event_types.find(event_type)
        return RetryPolicy() if declared is None else declared.retry

    def _knows(self, envelope: Envelope) -> bool:
        """Whether this release can tell if an event has a local rollback."""
        known = self.event_types.find(envelope.type) is not None
        return known or envelope.kind is TxKind.ROLLBACK

    def _roll_back_locally(
        self, function: HandlerFunction, session: Session, envelope: Envelope
    ) -> None:
        payload = decode_payload(self.event_types.get(envelope.type).payload, envelope.payload)
        run(function, session, envelope.opened(payload))
