"""The declarations of a service: events, handlers, and local rollbacks of failed events."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from shieldtx._coroutines import run_coroutine
from shieldtx.consumer.failures import let_fail
from shieldtx.consumer.handler_types import HandlerFunction
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.callables import check_callable, is_coroutine_function, run_for_effect
from shieldtx.domain.event_fields import EventLimits
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope, is_foreign, physical_topic
from shieldtx.domain.payloads import require_complete
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.schema_versions import Upcaster
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.publish_decorator import Publication, publish_decorator
from shieldtx.outbox.published_results import (
    ONE_PAYLOAD,
    ResultShape,
    payload_type_of,
    shape_of,
    unannotated,
)
from shieldtx.ports.relay import LocalRollback
from shieldtx.settings.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=HandlerFunction)
U = TypeVar("U", bound=Upcaster)


class Declarations:
    """The events, handlers and local rollbacks that a service has declared."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        """Create an empty list; `settings` is not called by declarations."""
        self._settings = settings
        self.event_types = EventTypeRegistry()
        self.groups: dict[str, ConsumerGroup] = {}
        self.local_rollbacks: dict[str, LocalRollback] = {}
        self.has_coroutine_rollbacks = False
        """Whether a local rollback is a coroutine function: all then run on the event loop."""

    def apply(self, settings: Settings) -> None:
        """Apply the limits of the settings to event types without their own, also to later ones."""
        self.event_types.limit(
            EventLimits(payload=settings.max_payload_bytes),
            backlog_limit=settings.backlog_limit,
            on_backlog=settings.on_backlog,
        )

    def publishes(
        self,
        outbox: Callable[[], Outbox],
        publication: Publication,
        *,
        payload: Any,
        version: int | None,
        topic: str | None,
        retry: RetryPolicy | None,
    ) -> Callable[[F], F]:
        """Return the decorator of a method whose return value `outbox` publishes."""

        def decorate(function: F) -> F:
            shape = self._shape_of_results(function, publication.event_type, payload)
            decorated = publish_decorator(outbox, replace(publication, shape=shape))(function)
            self.event_types.declare_at_method(
                publication.event_type,
                infer_payload=lambda: shape.payload,
                payload=payload,
                version=version,
                topic=topic,
                retry=retry,
            )
            return decorated

        return decorate

    def _shape_of_results(
        self, function: Callable[..., Any], event_type: str, payload: Any
    ) -> ResultShape:
        """Return the shape of a publisher's results.

        A list or an optional type that is declared as the payload's type is one payload.
        """
        declared = self.event_types.find(event_type)
        if payload is None and declared is not None:
            payload = declared.declared_payload
        try:
            annotation = payload_type_of(function)
        except ConfigurationError as error:
            if payload is None and declared is None:
                raise
            # An annotation for type checkers alone does not stop a declared type. Without a payload
            # that would refuse them, None and a list might wrongly become one payload.
            return ONE_PAYLOAD if payload is not None else ResultShape(unresolved=str(error))
        if payload is None and annotation is None:
            return ResultShape(is_undescribed=True)
        is_one = payload is not None and unannotated(payload) == unannotated(annotation)
        return ONE_PAYLOAD if is_one else shape_of(annotation)

    def upcasts(self, event_type: str, from_version: int) -> Callable[[U], U]:
        """Return the decorator of the upcaster of an event type from a version to the next."""

        def decorate(function: U) -> U:
            self.event_types.declare_upcaster(event_type, from_version, function)
            return function

        return decorate

    def local_rollback(self, event_type: str) -> Callable[[H], H]:
        """Return the decorator of a function that undoes an event which cannot be delivered."""

        def decorate(function: H) -> H:
            if event_type in self.local_rollbacks:
                raise ConfigurationError(f"event type {event_type!r} has two local rollbacks")
            what = f"local rollback of event type {event_type!r}"
            check_callable(
                function, what=what, call="local_rollback(session, event)", accepts_async=True
            )
            is_coroutine = is_coroutine_function(function)
            self.has_coroutine_rollbacks = self.has_coroutine_rollbacks or is_coroutine
            call = run_coroutine if is_coroutine else run_for_effect
            self.local_rollbacks[event_type] = partial(self._roll_back_locally, function, call)
            return function

        return decorate

    def consumer(self, group: str) -> ConsumerGroup:
        """Return the consumer group of this name, on which handlers are declared."""
        if group not in self.groups:
            self.groups[group] = ConsumerGroup(group, self.event_types)
        return self.groups[group]

    def topics(self) -> list[str]:
        """Return the broker's names of all topics that this service writes or reads, sorted.

        Foreign topics are not among them: other software creates them.
        """
        prefix = self._settings().topic_prefix
        named = {(t.topic, kind) for t in self.event_types for kind in TxKind}
        for group in self.groups.values():
            named |= _rollback_topics(group)
            own = [topic for topic, _ in group.subscriptions() if not is_foreign(topic)]
            named |= {(topic, kind) for topic in own for kind in TxKind}
        return sorted(physical_topic(prefix, topic, kind) for topic, kind in named)

    def foreign_topics(self) -> list[str]:
        """Return the names of the foreign topics that this service reads, sorted."""
        read = {t for group in self.groups.values() for t, _ in group.subscriptions()}
        return sorted(physical_topic("", t, TxKind.COMMIT) for t in read if is_foreign(t))

    def topics_written(self) -> list[str]:
        """Return the broker's names of the topics to which this service publishes, sorted."""
        named = {(t.topic, TxKind.COMMIT) for t in self.event_types}
        for group in self.groups.values():
            named |= _rollback_topics(group)
        prefix = self._settings().topic_prefix
        return sorted(physical_topic(prefix, topic, kind) for topic, kind in named)

    def topics_of(self, group: str) -> list[str]:
        """Return the broker's names of the topics that a declared group reads.

        Raises ConfigurationError for a foreign topic with the name of another topic of the group.
        """
        subscriptions = self.group(group).subscriptions()
        prefix = self._settings().topic_prefix
        names = [physical_topic(prefix, topic, kind) for topic, kind in subscriptions]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(
                f"consumer group {group!r} reads {', '.join(twice)} as a topic of shieldtx and "
                "as a foreign topic: declare one of the two"
            )
        return names

    def group_id(self, group: str) -> str:
        """Return the broker's name of a consumer group."""
        return f"{self._settings().kafka_group_prefix}{group}"

    def longest_lease(self) -> timedelta:
        """Return the longest lease of this application's handlers; a minute without handlers."""
        # Copied, because each new connection calls this, even while handlers are declared.
        leases = [h.lease for group in list(self.groups.values()) for h in group.handlers()]
        return max(leases, default=timedelta(minutes=1))

    def handled_by(self, group: str) -> AbstractSet[tuple[str, TxKind]]:
        """Return the event types and kinds for which a group has handlers in this application."""
        declared = self.groups.get(group)
        return frozenset() if declared is None else declared.handled()

    def is_handled_elsewhere(self, group: str, event_type: str) -> bool:
        """Whether another group than this one has a handler for events of a type."""
        others = [other for name, other in list(self.groups.items()) if name != group]
        return any((event_type, TxKind.COMMIT) in other.handled() for other in others)

    def group(self, group: str) -> ConsumerGroup:
        """Return a group with handlers; raises ConfigurationError for a group without handlers."""
        declared = self.groups.get(group)
        if declared is None or not declared.subscriptions():
            known = ", ".join(sorted(self.groups)) or "none"
            raise ConfigurationError(
                f"consumer group {group!r} has no handlers in this application (groups: {known})"
            )
        return declared

    def retry_of(self, event_type: str) -> RetryPolicy:
        """Return the retry policy for the publication of an event type."""
        # Another service, the upstream, declares the type of a rollback event.
        declared = self.event_types.find(event_type)
        return RetryPolicy() if declared is None else declared.retry

    def check_payload_types(self) -> None:
        """Raise ConfigurationError for a payload that could never be read.

        Its type has a name that is not defined, or no chain of upcasters makes its version. This is
        checked when a worker is built, because types, upcasters and readers come in any order.
        """
        for declared in self.event_types:
            require_complete(declared.payload, of=f"event type {declared.name!r}")
        upcasters = self.event_types.upcasters
        read = {(t.name, t.version) for t in self.event_types}
        for group in self.groups.values():
            for (name, _), handler in group.declared():
                require_complete(handler.payload, of=f"a handler of event type {name!r}")
                read.add((name, handler.version))
        for event_type, version in read:
            upcasters.check_chain(event_type, version or upcasters.newest(event_type))

    def of_unknown_types(self) -> list[tuple[str, str]]:
        """Return functions that may never be called: what each one is, and its event type.

        Nothing declares the type or handles its events, so that its name may be mistyped.
        """
        groups = self.groups.values()
        handled = {key for group in groups for key in group.handled()}
        known = {declared.name for declared in self.event_types}
        known |= {name for name, kind in handled if kind is TxKind.COMMIT}
        found = [("compensation", name) for name, kind in handled if kind is TxKind.ROLLBACK]
        found += [("local rollback", name) for name in self.local_rollbacks]
        found += [("upcaster", name) for name in self.event_types.upcasters.types()]
        return sorted((what, name) for what, name in found if name not in known)

    def knows(self, envelope: Envelope) -> bool:
        """Whether this release knows if an event has a local rollback."""
        known = self.event_types.find(envelope.type) is not None
        return known or envelope.kind is TxKind.ROLLBACK

    def _roll_back_locally(
        self,
        function: HandlerFunction,
        call: Callable[..., None],
        session: Session,
        envelope: Envelope,
    ) -> None:
        event = envelope.opened(self.event_types.read(envelope))
        let_fail(partial(call, function, session, event))


def _rollback_topics(group: ConsumerGroup) -> set[tuple[str, TxKind]]:
    """Return the logical topics to which a group writes when it gives an event up."""
    return {
        # A foreign topic has no rollback topic: that of the event's type is used.
        (event_type if is_foreign(handler.topic) else handler.topic, TxKind.ROLLBACK)
        for (event_type, kind), handler in group.declared()
        if kind is TxKind.COMMIT
    }
