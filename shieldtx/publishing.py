"""The decorator that turns what a service method returns into an event of the same transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar, cast, get_type_hints

from pydantic import BaseModel
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from shieldtx.errors import ConfigurationError, EventRefused, TransactionRefused
from shieldtx.events import NO_HEADERS, Event
from shieldtx.outbox import CallersTransaction, Outbox
from shieldtx.states import Operation

Part: TypeAlias = str | Callable[[Any], object] | None
"""Where a part of the event comes from: a field of the payload by name, or a function of it.

It becomes text by `str`; None as its value is refused, since the order of a key would be lost."""

_TRANSACTIONS = (Session, AsyncSession, Connection, scoped_session, async_scoped_session)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What a decorated method publishes."""

    event_type: str
    key: Part = None
    biz_key: Part = None
    operation: Operation = Operation.INSERT
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    delay: timedelta | None = None

    def event_of(self, result: Any) -> Event:
        """Make the event of a method's result."""
        return Event(
            type=self.event_type,
            payload=result,
            key=_part("key", self.key, result),
            biz_key=_part("biz_key", self.biz_key, result),
            operation=self.operation,
            headers=self.headers,
        )


def publishing(outbox: Outbox, publication: Publication) -> Callable[[F], F]:
    """Return the decorator that adds an event for each call that returns.

    Methods and coroutine methods alike; one of their arguments must be the Session, AsyncSession or
    Connection whose transaction the event goes into.
    """

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                transaction = _transaction_among(function, args, kwargs)
                with outbox.staying_in(transaction, whose=function.__qualname__):
                    result = await function(*args, **kwargs)
                outbox.add(transaction, publication.event_of(result), delay=publication.delay)
                return result

            return cast("F", asynchronous)

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            transaction = _transaction_among(function, args, kwargs)
            with outbox.staying_in(transaction, whose=function.__qualname__):
                result = function(*args, **kwargs)
            outbox.add(transaction, publication.event_of(result), delay=publication.delay)
            return result

        return cast("F", synchronous)

    return decorate


def payload_type_of(function: Callable[..., Any]) -> Any:
    """Return the return annotation of a function; None (any JSON) where there is none.

    The other annotations may name what exists for type checkers only. Raises ConfigurationError.
    """
    function = inspect.unwrap(function)
    annotations = getattr(function, "__annotations__", {})
    if "return" not in annotations:
        return None
    only = SimpleNamespace(__annotations__={"return": annotations["return"]})
    names = getattr(function, "__globals__", {})
    try:
        return get_type_hints(only, globalns=names, include_extras=True)["return"]
    except NameError as error:
        raise ConfigurationError(
            f"the return annotation of {function.__qualname__} cannot be resolved ({error}); "
            "give the payload's type as payload="
        ) from error


def _transaction_among(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallersTransaction:
    """Find the caller's transaction among the arguments, before the function runs."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, _TRANSACTIONS):
            return argument
    raise TransactionRefused(
        f"{function.__qualname__} was called without a Session, AsyncSession or Connection, so its "
        "event has no transaction to go into; pass one as an argument"
    )


def _part(name: str, part: Part, payload: Any) -> str | None:
    """Return the key or business key of a payload as text."""
    if part is None:
        return None
    if callable(part):
        value = part(payload)
    elif isinstance(payload, Mapping):
        value = payload.get(part)
    elif isinstance(payload, BaseModel) or hasattr(payload, part):
        value = getattr(payload, part, None)
    else:
        value = None
    if value is None:
        raise EventRefused(name, f"the payload {type(payload).__name__} has no value for {part!r}")
    return str(value)
