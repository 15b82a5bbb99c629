"""The half messages that a service declares: local transactions, checkers and barriers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Engine

from shieldtx.domain.callables import check_callable, is_coroutine_function
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Event
from shieldtx.domain.states import LocalOutcome
from shieldtx.errors import ConfigurationError
from shieldtx.half_messages.messages import HalfMessages
from shieldtx.half_messages.transactional_decorator import LocalTransactionSpec, transactional
from shieldtx.outbox.published_results import payload_type_of
from shieldtx.store.connections import accept_engine

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Callable[[Event], LocalOutcome | Awaitable[LocalOutcome]])

BarrierDatabase: TypeAlias = tuple[Engine | None, str | None]
"""The database of a barrier and its schema; no engine: the service's own database."""

OWN_DATABASE: BarrierDatabase = (None, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredChecker:
    """A function of the application that returns the outcome of a local transaction."""

    function: Callable[[Event], Any]
    is_coroutine: bool


class HalfMessageDeclarations:
    """The decorated local transactions of a service, and the sources of their outcomes."""

    def __init__(
        self, event_types: EventTypeRegistry, *, messages: Callable[[], HalfMessages]
    ) -> None:
        """Create an empty list; `messages` is called at each call of a local transaction."""
        self.event_types = event_types
        self.outcomes: dict[str, DeclaredChecker | BarrierDatabase] = {}
        """The checker or the barrier of each event type."""
        self._messages = messages

    @property
    def barriers(self) -> dict[str, BarrierDatabase]:
        """The database of each event type's barrier."""
        return {name: found for name, found in self.outcomes.items() if isinstance(found, tuple)}

    def transactional(
        self,
        transaction: LocalTransactionSpec,
        *,
        payload_type: Any,
        version: int | None,
        topic: str | None,
    ) -> Callable[[F], F]:
        """Return the decorator of a method that is a local transaction."""

        def decorate(function: F) -> F:
            decorated = transactional(self._messages, transaction)(function)
            named = transaction.payload

            def payload_of_argument() -> Any:
                return payload_type_of(function, named) if isinstance(named, str) else None

            self.event_types.declare_at_method(
                transaction.event_type,
                infer_payload=payload_of_argument,
                payload=payload_type,
                version=version,
                topic=topic,
            )
            return decorated

        return decorate

    def checks(self, event_type: str) -> Callable[[C], C]:
        """Return the decorator of a checker, which returns the outcomes of local transactions.

        The function is called as `function(event)`, in any relay of the service, and returns a
        LocalOutcome.
        """
        return partial(self._add_checker, event_type)

    def _add_checker(self, event_type: str, function: C) -> C:
        what = f"check of event type {event_type!r}"
        check_callable(function, what=what, call="checker(event)", accepts_async=True)
        is_coroutine = is_coroutine_function(function)
        self._add(event_type, DeclaredChecker(function=function, is_coroutine=is_coroutine))
        return function

    def barrier(
        self, *event_types: str, engine: Engine | None = None, schema: str | None = None
    ) -> None:
        """Declare that a barrier in the local transactions' own database proves their outcome.

        The barrier is in the service's database by default. An `engine` names another database,
        where `shieldtx db upgrade` has created the tables in `schema`. Each local transaction of
        these types must call `guard`.
        """
        if engine is not None:
            accept_engine(engine)
        for event_type in event_types:
            self._add(event_type, OWN_DATABASE if engine is None else (engine, schema))

    def _add(self, event_type: str, outcomes: DeclaredChecker | BarrierDatabase) -> None:
        if event_type in self.outcomes:
            raise ConfigurationError(
                f"event type {event_type!r} has a second source of outcomes: keep one, a "
                "checker or the barrier"
            )
        self.outcomes[event_type] = outcomes
