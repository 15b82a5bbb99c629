"""What a consumer group does with events: declared with decorators, looked up by type and kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from shieldtx.catalog import Catalog, checked_name
from shieldtx.errors import ConfigurationError, HandlerConflict, NotAuthorised
from shieldtx.events import Envelope, Event
from shieldtx.payloads import payload_type
from shieldtx.retry import RetryPolicy
from shieldtx.states import TxKind

HandlerFunction: TypeAlias = Callable[[Session, Event], Any]
Interceptor: TypeAlias = Callable[[Session, Event, Callable[[], None]], None]
"""Wraps a handler in its transaction: `def timed(session, event, proceed): ...; proceed(); ...`."""

F = TypeVar("F", bound=HandlerFunction)
I = TypeVar("I", bound=Interceptor)  # noqa: E741  the initial of what it stands for


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """A handler and how it is run."""

    function: HandlerFunction
    topic: str
    """The logical topic that its events come from."""
    payload: TypeAdapter[Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease: timedelta = timedelta(minutes=1)
    """How long one attempt may take before another worker may take the event over."""
    authorised: frozenset[str] | None = None
    """The sources whose events it is given; None: every source's."""

    def check_authority(self, envelope: Envelope) -> None:
        """Raise NotAuthorised for an event of a source that this handler does not listen to."""
        if self.authorised is not None and envelope.source not in self.authorised:
            raise NotAuthorised(
                f"ce_source: {envelope.source!r} is not authorised to send a {envelope.kind} of "
                f"{envelope.type!r}, only {', '.join(sorted(self.authorised))}"
            )


class ConsumerGroup:
    """The handlers of one consumer group; events are dedupled per group."""

    def __init__(self, name: str, catalog: Catalog) -> None:
        self.name = checked_name("consumer group", name)
        self._catalog = catalog
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
    ) -> Callable[[F], F]:
        """Declare what this group does when an event of the type happened.

        The function is called as `function(session, event)`; what it writes with `session` is
        committed together with the event's status. An exception ends the attempt; after the last
        one (or at once for shieldtx.Refused) a ROLLBACK event goes back to where the event came
        from. `payload` is the type that `event.payload` is turned into; `lease` bounds one attempt.
        Topic and payload are those of the event type where this service declares it.
        """
        return self._declare(event_type, TxKind.COMMIT, payload, topic, retry, lease)

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
        return self._declare(event_type, TxKind.ROLLBACK, payload, topic, retry, lease, may_refuse)

    def intercepts(self, function: I) -> I:
        """Add an interceptor around every handler of the group, inside those added before."""
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
        return self._handlers.values()

    def subscriptions(self) -> list[tuple[str, TxKind]]:
        """Return the logical topics and kinds that the group reads, sorted."""
        kinds = [kind for _, kind in self._handlers]
        return sorted({(h.topic, kind) for h, kind in zip(self.handlers(), kinds, strict=True)})

    def _declare(  # noqa: PLR0917  called twice, just above
        self,
        event_type: str,
        kind: TxKind,
        payload: Any,
        topic: str | None,
        retry: RetryPolicy | None,
        lease: timedelta,
        authorised: frozenset[str] | None = None,
    ) -> Callable[[F], F]:
        checked_name("event type", event_type)
        if lease <= timedelta(0):
            raise ConfigurationError(
                f"handler of {event_type!r}: lease must be longer than 0, not {lease}"
            )
        given: dict[str, Any] = {
            "topic": checked_name("topic", event_type if topic is None else topic),
            "payload": payload_type(payload, of=f"a handler of event type {event_type!r}"),
        }
        left_out = [
            name for name, value in (("topic", topic), ("payload", payload)) if value is None
        ]

        def declare(function: F) -> F:
            key = event_type, kind
            if key in self._handlers:
                raise HandlerConflict(
                    f"consumer group {self.name!r} has two handlers for {kind} of {event_type!r}; "
                    "put one of them into a group of its own"
                )
            self._handlers[key] = Handler(
                function=function,
                retry=retry or RetryPolicy(),
                lease=lease,
                authorised=authorised,
                **given,
            )
            if left_out:
                self._completed_by_type[key] = tuple(left_out)
            return function

        return declare

    def _complete(self, key: tuple[str, TxKind]) -> None:
        """Take over what the handler left to its event type, if that is declared by now."""
        declared = self._catalog.find(key[0])
        if declared is not None:
            left_out = self._completed_by_type.pop(key)
            taken_over = {name: getattr(declared, name) for name in left_out}
            self._handlers[key] = replace(self._handlers[key], **taken_over)


def _sources(names: Collection[str] | None, *, of: str) -> frozenset[str] | None:
    if names is None:
        return None
    if isinstance(names, str) or not names:
        raise ConfigurationError(
            f"compensation of {of!r}: authorised must name sources, such as ('stock',), "
            f"not {names!r}"
        )
    return frozenset(checked_name("source", name) for name in names)
