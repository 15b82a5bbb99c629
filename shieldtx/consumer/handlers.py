"""What a consumer group does with events: declared with decorators, looked up by type and kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from shieldtx.domain.callables import check_callable
from shieldtx.domain.event_types import EventTypeRegistry, checked_name
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.payloads import payload_type
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError, HandlerConflict, NotAuthorised

HandlerFunction: TypeAlias = Callable[[Session, Event], None]
ListHandlerFunction: TypeAlias = Callable[[Session, Sequence[Event]], None]
Interceptor: TypeAlias = Callable[[Session, Event, Callable[[], None]], None]
"""Wraps a handler in its transaction: `def timed(session, event, proceed): ...; proceed(); ...`.

One that returns without a call of `proceed` in its own thread fails the attempt: the handler has
not run."""

F = TypeVar("F", bound=HandlerFunction)
L = TypeVar("L", bound=ListHandlerFunction)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
I = TypeVar("I", bound=Interceptor)  # noqa: E741  the initial of what it stands for


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """A handler and how it is run."""

    function: Callable[[Session, Any], Any]
    topic: str
    """The logical topic that its events come from."""
    payload: TypeAdapter[Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease: timedelta = timedelta(minutes=1)
    """How long one attempt may take before another worker may take the event over."""
    authorised: frozenset[str] | None = None
    """The sources whose events it is given; None: every source's."""
    alone: bool = False
    """Whether each of its events gets a transaction of its own."""
    takes_list: bool = False
    """Whether it is given a list of events."""

    def shares_transactions(self, kind: TxKind) -> bool:
        """Whether first attempts at events of this kind may share a transaction with others."""
        return kind is TxKind.COMMIT and not self.alone

    def check_authority(self, envelope: Envelope) -> None:
        """Raise NotAuthorised for an event of a source that this handler does not listen to."""
        if self.authorised is not None and envelope.source not in self.authorised:
            raise NotAuthorised(
                f"ce_source: {envelope.source!r} is not authorised to send a {envelope.kind} of "
                f"{envelope.type!r}, only {', '.join(sorted(self.authorised))}"
            )


class ConsumerGroup:
    """The handlers of one consumer group; events are dedupled per group."""

    def __init__(self, name: str, event_types: EventTypeRegistry) -> None:
        self.name = checked_name("consumer group", name)
        self._event_types = event_types
        self._handlers: dict[tuple[str, TxKind], Handler] = {}
        # Those that take something over from their event type, which may be declared later.
        self._completed_by_type: dict[tuple[str, TxKind], tuple[str, ...]] = {}
        self.interceptors: list[Interceptor] = []

    def handles(
        self,
        event_type: str,
        *,
        payload: Any = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        lease: timedelta = timedelta(minutes=1),
        alone: bool = False,
    ) -> Callable[[F], F]:
        """Declare what this group does when an event of the type happened.

        The function is called as `function(session, event)`; what it writes with `session` is
        committed together with the event's status. An exception ends the attempt; after the last
        one (or at once for shieldtx.Refused) a ROLLBACK event goes back to where the event came
        from. `payload` is the type that `event.payload` is turned into; `lease` bounds one attempt.
        Topic and payload are those of the event type where this service declares it.

        First attempts that arrive together share a transaction: when one of them fails, its code
        and that of its neighbours may run again, as it may after a crash, and what they had written
        with `session` is undone first. What they did elsewhere is not: with `alone`, each event
        gets a transaction of its own, and no code runs again because of a neighbour. A handler that
        leaves something in it (a temporary table, a `SET LOCAL`) is the last one there.
        """
        given = self._given(event_type, payload, topic, retry, lease)
        return self._declare(event_type, TxKind.COMMIT, given | {"alone": alone})

    def handles_many(
        self,
        event_type: str,
        *,
        payload: Any = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        lease: timedelta = timedelta(minutes=1),
    ) -> Callable[[L], L]:
        """Declare a handler that is called as `function(session, events)`, for those that can.

        It is given what has arrived of the type, one event or many, in order; `lease` bounds one
        call. When it raises, all that the call has written is undone, and halves of the list are
        tried until the event at fault is alone: that one has failed its attempt, as any. Events
        that it adds name no cause by themselves. A group with interceptors cannot have one.
        """
        if self.interceptors:
            raise ConfigurationError(_EXCLUDED.format(group=self.name, type=event_type))
        given = self._given(event_type, payload, topic, retry, lease)
        return self._declare(event_type, TxKind.COMMIT, given | {"takes_list": True})

    def compensates(
        self,
        event_type: str,
        *,
        payload: Any = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        lease: timedelta = timedelta(minutes=1),
        authorised: Collection[str] | None = None,
    ) -> Callable[[F], F]:
        """Declare how this group takes an event back that somebody downstream gave up on.

        The function is given the original event, from this service's own tables, and called once
        per original however many rollbacks arrive. `authorised` names the sources that may refuse
        the event, by default all; the rollbacks of others are parked.
        """
        may_refuse = _sources(authorised, of=event_type)
        given = self._given(event_type, payload, topic, retry, lease)
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

    def handler_of(self, event_type: str, kind: TxKind) -> Handler | None:
        """Return the handler of a type and kind, or None where the group is not interested."""
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

    def subscriptions(self) -> list[tuple[str, TxKind]]:
        """Return the logical topics and kinds that the group reads, sorted."""
        return sorted({(handler.topic, kind) for (_, kind), handler in self.declared()})

    def _given(
        self,
        event_type: str,
        payload: Any,
        topic: str | None,
        retry: RetryPolicy | None,
        lease: timedelta,
    ) -> dict[str, Any]:
        """Check what every handler is declared with; None: left to the event type."""
        checked_name("event type", event_type)
        if lease <= timedelta(0):
            raise ConfigurationError(
                f"handler of {event_type!r}: lease must be longer than 0, not {lease}"
            )
        adapter = payload_type(payload, of=f"a handler of event type {event_type!r}")
        return {
            "topic": None if topic is None else checked_name("topic", topic),
            "payload": None if payload is None else adapter,
            "retry": retry or RetryPolicy(),
            "lease": lease,
        }

    def _declare(
        self, event_type: str, kind: TxKind, given: dict[str, Any]
    ) -> Callable[[FunctionT], FunctionT]:
        defaults = {"topic": event_type, "payload": payload_type(None, of=event_type)}
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
            )
            self._handlers[key] = Handler(function=function, **complete)
            if left_out:
                self._completed_by_type[key] = left_out
            return function

        return declare

    def _complete(self, key: tuple[str, TxKind]) -> None:
        """Take over what the handler left to its event type, if that is declared by now."""
        declared = self._event_types.find(key[0])
        if declared is not None:
            left_out = self._completed_by_type.pop(key)
            taken_over = {name: getattr(declared, name) for name in left_out}
            self._handlers[key] = replace(self._handlers[key], **taken_over)


_CALL = "handler(session, event)"
_LIST_CALL = "handler(session, events)"

_EXCLUDED = (
    "consumer group {group!r}: the handler of {type!r} takes a list of events, and an interceptor "
    "wraps the handling of one; put one of them into a group of its own, or do the interceptor's "
    "work in the handler"
)


def _sources(names: Collection[str] | None, *, of: str) -> frozenset[str] | None:
    if names is None:
        return None
    if isinstance(names, str) or not names:
        raise ConfigurationError(
            f"compensation of {of!r}: authorised must name sources, such as ('stock',), "
            f"not {names!r}"
        )
    return frozenset(checked_name("source", name) for name in names)
