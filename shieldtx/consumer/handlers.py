"""The handlers of a consumer group: declared with decorators, found by type and kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from shieldtx.consumer.foreign_topic import ForeignTopic
from shieldtx.consumer.handler import Handler, authorised_sources, checked_lease
from shieldtx.consumer.handler_types import (
    CompensationOptions,
    F,
    HandlerDecorator,
    HandlerOptions,
    Interceptor,
    L,
    ListHandlerDecorator,
    P,
    SingleHandlerOptions,
)
from shieldtx.domain.callables import check_callable, is_coroutine_function
from shieldtx.domain.event_types import EventTypeRegistry, checked_name, checked_type
from shieldtx.domain.payloads import payload_type
from shieldtx.domain.retry import RetryPolicy, checked_retry
from shieldtx.domain.schema_versions import checked_version
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError, HandlerConflict

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
I = TypeVar("I", bound=Interceptor)  # noqa: E741  the initial of Interceptor


class ConsumerGroup:
    """The handlers of one consumer group; each event has one effect in each group."""

    def __init__(self, name: str, event_types: EventTypeRegistry) -> None:
        self.name = checked_name("consumer group", name)
        self._event_types = event_types
        self._handlers: dict[tuple[str, TxKind], Handler] = {}
        # Handlers with options from their event type, which may be declared later.
        self._completed_by_type: dict[tuple[str, TxKind], tuple[str, ...]] = {}
        self._foreign: dict[str, ForeignTopic] = {}
        self.interceptors: list[Interceptor] = []

    @overload
    def handles(
        self, event_type: str, *, payload: type[P], **options: Unpack[SingleHandlerOptions]
    ) -> HandlerDecorator[P]: ...
    @overload
    def handles(
        self, event_type: str, *, payload: Any = None, **options: Unpack[SingleHandlerOptions]
    ) -> Callable[[F], F]: ...
    def handles(
        self,
        event_type: str,
        *,
        payload: Any = None,
        version: int | None = None,
        topic: str | ForeignTopic | None = None,
        retry: RetryPolicy | None = None,
        lease: timedelta = timedelta(minutes=1),
        alone: bool = False,
    ) -> Callable[[F], F]:
        """Return a decorator that declares the handler of an event type in this group.

        shieldtx calls the function as `function(session, event)`, and commits its writes on
        `session` together with the event's status. An exception ends the attempt, and so does a
        payload that does not fit `payload`. After the last attempt, a ROLLBACK event goes back to
        the event's source; with `then="park"` the event is DEAD. For shieldtx.Refused and the types
        of `refuse_on`, the ROLLBACK event goes back at once.
        `payload` is the type of `event.payload`, and `version` the version of its schema, to which
        upcasters bring older events. `lease` is the maximum duration of one attempt. A coroutine
        function (`async def`) gets an AsyncSession in the same transaction; it runs on an event
        loop that the application's coroutine functions share. Topic, payload and version default
        to those of the event type where this service declares it. A `ForeignTopic` has records of
        other software. Raises ConfigurationError for a bad argument, HandlerConflict for a second
        handler.

        First attempts that arrive together share a transaction. When one of them fails, the code of
        all may run again, as after a crash. Their writes on `session` are undone first. Effects
        elsewhere are not undone. With `alone`, each event gets a transaction of its own, and no
        code runs again because of another event. A handler that leaves a state in its transaction
        (a temporary table, a `SET LOCAL`) is the last one in that transaction.
        """
        given = self._given(event_type, payload, topic, retry, lease, version=version)
        return self._declare(event_type, TxKind.COMMIT, given | {"alone": alone})

    @overload
    def handles_many(
        self, event_type: str, *, payload: type[P], **options: Unpack[HandlerOptions]
    ) -> ListHandlerDecorator[P]: ...
    @overload
    def handles_many(
        self, event_type: str, *, payload: Any = None, **options: Unpack[HandlerOptions]
    ) -> Callable[[L], L]: ...
    def handles_many(
        self,
        event_type: str,
        *,
        payload: Any = None,
        version: int | None = None,
        topic: str | ForeignTopic | None = None,
        retry: RetryPolicy | None = None,
        lease: timedelta = timedelta(minutes=1),
    ) -> Callable[[L], L]:
        """Return a decorator that declares a handler of lists: `function(session, events)`.

        The list contains the arrived events of the type, one or many, in order; `lease` limits one
        call. When the call raises, all its writes are undone, and shieldtx tries halves of the list
        until the failing event is alone: its attempt has failed. Events that the function adds name
        no cause by default. A group with interceptors cannot have such a handler: it raises
        ConfigurationError.
        """
        if self.interceptors:
            raise ConfigurationError(_EXCLUDED.format(group=self.name, type=event_type))
        given = self._given(event_type, payload, topic, retry, lease, version=version)
        return self._declare(event_type, TxKind.COMMIT, given | {"takes_list": True})

    @overload
    def compensates(
        self, event_type: str, *, payload: type[P], **options: Unpack[CompensationOptions]
    ) -> HandlerDecorator[P]: ...
    @overload
    def compensates(
        self, event_type: str, *, payload: Any = None, **options: Unpack[CompensationOptions]
    ) -> Callable[[F], F]: ...
    def compensates(
        self,
        event_type: str,
        *,
        payload: Any = None,
        version: int | None = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        lease: timedelta = timedelta(minutes=1),
        authorised: Collection[str] | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that declares how this group takes back an event given up downstream.

        The function receives the original event, from this service's own tables. It takes effect
        once per original, however many rollbacks arrive. `authorised` names the sources that may
        refuse the event, by default all; rollbacks of other sources are parked.
        """
        may_refuse = authorised_sources(authorised, of=event_type)
        if isinstance(topic, ForeignTopic):
            raise ConfigurationError(
                f"compensation of {event_type!r}: a foreign topic has no rollback events"
            )
        given = self._given(event_type, payload, topic, retry, lease, version=version)
        return self._declare(event_type, TxKind.ROLLBACK, given | {"authorised": may_refuse})

    def intercepts(self, function: I) -> I:
        """Add an interceptor around every handler of the group, inside those added before."""
        for (event_type, _), handler in self._handlers.items():
            if handler.takes_list:
                raise ConfigurationError(_EXCLUDED.format(group=self.name, type=event_type))
        what = f"consumer group {self.name!r}, interceptor"
        check_callable(function, what=what, call="interceptor(session, event, proceed)")
        self.interceptors.append(function)
        return function

    @property
    def has_coroutines(self) -> bool:
        """Whether any handler is a coroutine function: the group needs an event loop."""
        return any(handler.is_coroutine for handler in self._handlers.values())

    def plain_types(self) -> list[str]:
        """Return the event types whose handlers are plain functions, sorted."""
        plain = {t for (t, _), handler in self._handlers.items() if not handler.is_coroutine}
        return sorted(plain)

    def handler_of(self, event_type: str, kind: TxKind) -> Handler | None:
        """Return the handler of a type and kind; None where the group has none."""
        key = event_type, kind
        if key in self._completed_by_type:
            self._complete(key)
        return self._handlers.get(key)

    def handlers(self) -> Iterable[Handler]:
        """Return all handlers of the group."""
        for key in list(self._completed_by_type):
            self._complete(key)
        return list(self._handlers.values())

    def handled(self) -> AbstractSet[tuple[str, TxKind]]:
        """Return the event types and kinds that the group has handlers for."""
        return self._handlers.keys()

    def declared(self) -> Iterable[tuple[tuple[str, TxKind], Handler]]:
        """Return all handlers of the group with the event type and the kind of their events."""
        return zip(self._handlers, self.handlers(), strict=True)

    def foreign_topic(self, name: str) -> ForeignTopic | None:
        """Return the foreign topic that the group reads under the broker's name of a topic."""
        return self._foreign.get(name)

    def types_of(self, topic: str) -> list[str]:
        """Return the event types of COMMIT events that the group handles from a logical topic."""
        return [
            event_type
            for (event_type, kind), handler in self._handlers.items()
            if kind is TxKind.COMMIT and handler.topic == topic
        ]

    def subscriptions(self) -> list[tuple[str, TxKind]]:
        """Return the logical topics and kinds that the group reads, sorted."""
        return sorted({(handler.topic, kind) for (_, kind), handler in self.declared()})

    def _given(
        self,
        event_type: str,
        payload: Any,
        topic: str | ForeignTopic | None,
        retry: RetryPolicy | None,
        lease: timedelta,
        *,
        version: int | None,
    ) -> dict[str, Any]:
        """Check the options that every handler has; None: defined by the event type."""
        if isinstance(topic, str):
            # The type of a CloudEvent of another producer need not be the name of a topic.
            checked_type(event_type)
        else:
            checked_name("event type", event_type)
        adapter = payload_type(payload, of=f"a handler of event type {event_type!r}")
        return {
            "topic": None if topic is None else self._checked_topic(topic),
            "payload": None if payload is None else adapter,
            "version": checked_version(version, of=f"handler of {event_type!r}"),
            "upcasters": self._event_types.upcasters,
            "retry": checked_retry(retry, of=f"handler of {event_type!r}"),
            "lease": checked_lease(lease, event_type),
        }

    def _checked_topic(self, topic: str | ForeignTopic) -> str:
        """Return the logical name of a topic; a foreign topic becomes one of this group's."""
        if not isinstance(topic, ForeignTopic):
            return checked_name("topic", topic)
        if self._foreign.setdefault(topic.name, topic) != topic:
            raise ConfigurationError(
                f"consumer group {self.name!r} reads foreign topic {topic.name!r} with two "
                "decoders: declare one ForeignTopic, whose decoder names the type of each event"
            )
        return topic.logical_name

    def _declare(
        self, event_type: str, kind: TxKind, given: dict[str, Any]
    ) -> Callable[[FunctionT], FunctionT]:
        any_json = payload_type(None, of=event_type)
        defaults = {"topic": event_type, "payload": any_json, "version": None}
        left_out = tuple(name for name in defaults if given[name] is None)
        complete = given | {name: defaults[name] for name in left_out}

        def declare(function: FunctionT) -> FunctionT:
            key = event_type, kind
            if key in self._handlers:
                raise HandlerConflict(
                    f"consumer group {self.name!r} has two handlers for {kind} of {event_type!r}; "
                    "put one of them into a group of its own"
                )
            check_callable(
                function,
                what=f"consumer group {self.name!r}, handler for {kind} of {event_type!r}",
                call=_LIST_CALL if complete.get("takes_list") else _CALL,
                accepts_async=True,
            )
            is_coroutine = is_coroutine_function(function)
            self._handlers[key] = Handler(function=function, is_coroutine=is_coroutine, **complete)
            if left_out:
                self._completed_by_type[key] = left_out
            return function

        return declare

    def _complete(self, key: tuple[str, TxKind]) -> None:
        """Copy the omitted options from the handler's event type, if that is declared by now."""
        declared = self._event_types.find(key[0])
        if declared is not None:
            left_out = self._completed_by_type.get(key, ())
            taken_over = {name: getattr(declared, name) for name in left_out}
            self._handlers[key] = replace(self._handlers[key], **taken_over)
            # Last: two threads may complete the same handler, with the same result.
            self._completed_by_type.pop(key, None)


_CALL = "handler(session, event)"
_LIST_CALL = "handler(session, events)"

_EXCLUDED = (
    "consumer group {group!r}: the handler of {type!r} takes a list of events, and an interceptor "
    "wraps the handling of one; put one of them into a group of its own, or do the interceptor's "
    "work in the handler"
)
