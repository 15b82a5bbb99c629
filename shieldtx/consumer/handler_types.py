"""The types of handlers and of their decorators, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Protocol, TypeAlias, TypedDict, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shieldtx.consumer.foreign_topic import ForeignTopic
from shieldtx.domain.events import Event
from shieldtx.domain.retry import RetryPolicy

HandlerFunction: TypeAlias = (
    Callable[[Session, Event], None] | Callable[[AsyncSession, Event], Awaitable[None]]
)
ListHandlerFunction: TypeAlias = (
    Callable[[Session, list[Event]], None] | Callable[[AsyncSession, list[Event]], Awaitable[None]]
)
Interceptor: TypeAlias = Callable[[Session, Event, Callable[[], None]], None]
"""Wraps a handler in its transaction: `def timed(session, event, proceed): ...; proceed(); ...`.

An interceptor that returns without a call of `proceed` in its own thread fails the attempt: the
handler has not run."""

F = TypeVar("F", bound=HandlerFunction)
L = TypeVar("L", bound=ListHandlerFunction)
P = TypeVar("P")


class _SharedOptions(TypedDict, total=False):
    version: int | None
    retry: RetryPolicy | None
    lease: timedelta


class HandlerOptions(_SharedOptions, total=False):
    """The options that all handlers of events have."""

    topic: str | ForeignTopic | None


class SingleHandlerOptions(HandlerOptions, total=False):
    """The options of a handler of single events."""

    alone: bool


class CompensationOptions(_SharedOptions, total=False):
    """The options of a compensation."""

    topic: str | None
    authorised: Collection[str] | None


class HandlerDecorator(Protocol[P]):
    """Declares a handler of events whose payloads have the type `P`."""

    @overload
    def __call__(
        self, function: Callable[[Session, Event[P]], None], /
    ) -> Callable[[Session, Event[P]], None]: ...
    @overload
    def __call__(
        self, function: Callable[[AsyncSession, Event[P]], Awaitable[None]], /
    ) -> Callable[[AsyncSession, Event[P]], Awaitable[None]]: ...


class ListHandlerDecorator(Protocol[P]):
    """Declares a handler of lists of events whose payloads have the type `P`."""

    @overload
    def __call__(
        self, function: Callable[[Session, list[Event[P]]], None], /
    ) -> Callable[[Session, list[Event[P]]], None]: ...
    @overload
    def __call__(
        self, function: Callable[[AsyncSession, list[Event[P]]], Awaitable[None]], /
    ) -> Callable[[AsyncSession, list[Event[P]]], Awaitable[None]]: ...
