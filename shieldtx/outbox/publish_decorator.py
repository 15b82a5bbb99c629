"""The decorator that publishes the return value of a service method in the same transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar, cast

from pydantic import BaseModel
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from shieldtx.domain.callables import check_callable, is_coroutine_function, name_of, uncalled
from shieldtx.domain.events import NO_HEADERS, Event
from shieldtx.domain.schedule import Due, due
from shieldtx.domain.states import Operation
from shieldtx.errors import ConfigurationError, EventRefused, PayloadRefused, TransactionRefused
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.published_results import ONE_PAYLOAD, ResultShape
from shieldtx.outbox.session_binding import begun_connections
from shieldtx.outbox.transaction import CallersTransaction, caller_of

PayloadField: TypeAlias = str | Callable[[Any], object] | None
"""The source of a part of the event: a field of the payload by name, or a function of the payload.

`str` converts the value to text; the value None is refused, since the order of a key would be
lost."""

V = TypeVar("V")

DueAt: TypeAlias = V | str | Callable[[Any], V] | None
"""The due time of an event: a value, the name of a payload field, or a function of the payload.

The value None from a field is refused, since the event would be sent at once."""

_DUE: Final = ("delay", "at", "level")
_HINTS: Final = {
    NoneType: "; the return annotation `P | None` stands for a call without an event",
    list: "; the return annotation `list[P]` stands for an event of each item",
}
_TRANSACTIONS = (Session, AsyncSession, Connection, scoped_session, async_scoped_session)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """The event that a decorated method publishes."""

    event_type: str
    key: PayloadField = None
    biz_key: PayloadField = None
    operation: Operation = Operation.INSERT
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    delay: DueAt[timedelta] = None
    at: DueAt[datetime] = None
    level: DueAt[int] = None
    shape: ResultShape = ONE_PAYLOAD

    def __post_init__(self) -> None:
        """Refuse arguments that are wrong for every payload."""
        for name in ("key", "biz_key", *_DUE):
            payload_field = getattr(self, name)
            # A class such as `str` is allowed: it makes the value.
            if callable(payload_field) and not inspect.isclass(payload_field):
                what = f"event type {self.event_type!r}: {name}"
                check_callable(payload_field, what=what, call=f"{name}(payload)")
        given = [name for name in _DUE if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(
                f"event type {self.event_type!r}: give one of {', '.join(given)}, not several"
            )
        if not any(_is_of_payload(getattr(self, name)) for name in given):
            try:
                self.due_of(None)
            except EventRefused as error:
                raise ConfigurationError(f"event type {self.event_type!r}: {error}") from None

    def events_of(self, result: Any) -> list[tuple[Event, Due]]:
        """Return the events for a method's result, with their due times."""
        return [(self._event_of(p), self.due_of(p)) for p in self.shape.payloads_of(result)]

    def _event_of(self, payload: Any) -> Event:
        return Event(
            type=self.event_type,
            payload=payload,
            key=value_of_field("key", self.key, payload),
            biz_key=value_of_field("biz_key", self.biz_key, payload),
            operation=self.operation,
            headers=self.headers,
        )

    @property
    def is_for_later(self) -> bool:
        """Whether its events are due some time after they are written."""
        return any(getattr(self, name) for name in _DUE)

    def due_of(self, payload: Any) -> Due:
        """Return the due time of the event for a payload."""
        return due(**{name: _due_value(name, getattr(self, name), payload) for name in _DUE})


def publish_decorator(outbox: Callable[[], Outbox], publication: Publication) -> Callable[[F], F]:
    """Return the decorator that adds the events of each call that returns.

    It accepts methods and coroutine methods; one argument must be the Session, AsyncSession or
    Connection whose transaction takes the event. Each call of the method calls `outbox`: settings
    may be read after the declaration.
    """

    def decorate(function: F) -> F:
        what = f"publisher of event type {publication.event_type!r}"
        check_callable(function, what=what, call="", accepts_async=True)

        def stay(transaction: CallersTransaction) -> AbstractContextManager[None]:
            return outbox().require_same_transaction(
                transaction,
                whose=name_of(function),
                event_type=None if publication.is_for_later else publication.event_type,
            )

        if is_coroutine_function(function):

            @functools.wraps(function)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                transaction = _transaction_among(function, args, kwargs)
                with stay(transaction):
                    result = await function(*args, **kwargs)
                _publish(outbox(), transaction, publication, result)
                return result

            return cast("F", asynchronous)

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            transaction = _transaction_among(function, args, kwargs)
            with stay(transaction):
                result = function(*args, **kwargs)
            _publish(outbox(), transaction, publication, result)
            return result

        return cast("F", synchronous)

    return decorate


def _publish(
    outbox: Outbox, transaction: CallersTransaction, publication: Publication, result: Any
) -> None:
    if problem := uncalled(result):
        raise PayloadRefused(
            "payload",
            f"the method returned {problem}: put `publishes` right above its `async def`, below "
            "decorators that hide it",
        )
    outbox.add_due(transaction, publication.events_of(result))


def transactions_among(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[CallersTransaction]:
    """Return the sessions and connections among the arguments of a call."""
    return [each for each in (*args, *kwargs.values()) if isinstance(each, _TRANSACTIONS)]


def _transaction_among(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallersTransaction:
    """Return the caller's transaction among the arguments, before the function runs."""
    found = transactions_among(args, kwargs)
    if found:
        homes = [set(map(id, _homes_of(each))) for each in found]
        if all(homes[0] & other for other in homes):
            return found[0]
        kinds = ", ".join(type(each).__name__ for each in found)
        raise TransactionRefused(
            f"{name_of(function)} was called with several transactions ({kinds}), and which of "
            "them its event should go into is unknown: pass only one, and keep the others in the "
            "object that has the method"
        )
    raise TransactionRefused(
        f"{name_of(function)} was called without a Session, AsyncSession or Connection, so its "
        "event has no transaction to go into; pass one as an argument"
    )


def _homes_of(transaction: CallersTransaction) -> list[object]:
    """Return the objects that two arguments share if they are one transaction."""
    caller = caller_of(transaction)
    if isinstance(caller, Connection):
        return [caller]
    session = caller.sync_session if isinstance(caller, AsyncSession) else caller
    root = session.get_transaction()
    # An engine is not a transaction: two sessions on one engine have two transactions.
    bound = [session.bind] if isinstance(session.bind, Connection) else []
    return [session, *bound, *begun_connections(root)]


def value_of_field(name: str, payload_field: PayloadField, payload: Any) -> str | None:
    """Return the key or business key of a payload as text."""
    return None if payload_field is None else str(_value_of(name, payload_field, payload))


def _due_value(name: str, payload_field: DueAt[Any], payload: Any) -> Any:
    return (
        _value_of(name, payload_field, payload) if _is_of_payload(payload_field) else payload_field
    )


def _is_of_payload(payload_field: DueAt[Any]) -> TypeGuard[str | Callable[[Any], Any]]:
    return isinstance(payload_field, str) or callable(payload_field)


def _value_of(name: str, payload_field: str | Callable[[Any], object], payload: Any) -> object:
    """Return the value of a field in a payload; raises EventRefused for None."""
    value: object
    if callable(payload_field):
        value = payload_field(payload)
    elif isinstance(payload, Mapping):
        value = payload.get(payload_field)
    elif isinstance(payload, BaseModel) or hasattr(payload, payload_field):
        value = getattr(payload, payload_field, None)
    else:
        value = None
    if problem := uncalled(value):
        raise EventRefused(name, f"{payload_field!r} gave {problem}")
    if value is None:
        hint = _HINTS.get(type(payload), "")
        raise EventRefused(
            name, f"the payload {type(payload).__name__} has no value for {payload_field!r}{hint}"
        )
    return value
