"""The decorator that makes a service method a local transaction with a half message before it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar, cast

from shieldtx.domain.callables import check_callable, is_coroutine_function, name_of, uncalled
from shieldtx.domain.events import NO_HEADERS
from shieldtx.domain.states import LocalOutcome, Operation
from shieldtx.errors import ConfigurationError
from shieldtx.half_messages.block import HalfMessageBlock
from shieldtx.half_messages.messages import HalfMessages
from shieldtx.half_messages.open_blocks import DecoratedCall
from shieldtx.outbox.publish_decorator import PayloadField, transactions_among, value_of_field
from shieldtx.outbox.transaction import caller_of

log = logging.getLogger(__name__)

_LAYER = "__shieldtx_layer__"
"""The attribute of a decorated method that counts the `transactional` decorators around it."""

_OUTCOMES = frozenset(outcome.value for outcome in LocalOutcome)

F = TypeVar("F", bound=Callable[..., Any])

Argument: TypeAlias = str | Callable[[Mapping[str, Any]], object]
"""The payload: the name of a method's argument, or a function of all arguments by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTransactionSpec:
    """The half message that a decorated method prepares before it runs."""

    event_type: str
    payload: Argument
    key: PayloadField = None
    biz_key: PayloadField = None
    operation: Operation = Operation.INSERT
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    delay: timedelta | None = None
    immunity: timedelta | None = None
    rollback_on: tuple[type[BaseException], ...] = ()

    def half_of(
        self, messages: HalfMessages, arguments: Mapping[str, Any], call: DecoratedCall
    ) -> HalfMessageBlock:
        """Return the block around one call."""
        payload = self.payload(arguments) if callable(self.payload) else arguments[self.payload]
        return HalfMessageBlock(
            messages,
            self.event_type,
            payload,
            key=value_of_field("key", self.key, payload),
            biz_key=value_of_field("biz_key", self.biz_key, payload),
            operation=self.operation,
            headers=self.headers,
            delay=self.delay,
            immunity=self.immunity,
            rollback_on=self.rollback_on,
            call=call,
        )


def _check(transaction: LocalTransactionSpec, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called, or that would not do its work when called."""
    what = f"local transaction of event type {transaction.event_type!r}"
    check_callable(function, what=what, call="", accepts_async=True)
    if callable(transaction.payload):
        check_callable(transaction.payload, what=f"{what}: payload", call="payload(arguments)")


def transactional(
    messages: Callable[[], HalfMessages], transaction: LocalTransactionSpec
) -> Callable[[F], F]:
    """Return the decorator that prepares a half message for each call, and ends it with the call.

    It accepts methods and coroutine methods. A method that returns has committed, unless it returns
    a LocalOutcome. The outcome of a method that raises is UNKNOWN, except for `rollback_on`.
    """

    def decorate(function: F) -> F:
        _check(transaction, function)
        signature = inspect.signature(function)
        layer = getattr(function, _LAYER, 0) + 1
        call = DecoratedCall(inspect.unwrap(function), layer)

        def half_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> HalfMessageBlock:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return transaction.half_of(messages(), bound.arguments, call)

        def take_outcome(
            half: HalfMessageBlock, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
        ) -> None:
            _refuse(function, result)
            if isinstance(result, LocalOutcome):
                half.set_outcome(result)
            elif any(caller_of(t).in_transaction() for t in transactions_among(args, kwargs)):
                log.warning(
                    "function left its transaction open",
                    extra={
                        "action": "transaction_left_open",
                        "function": name_of(function),
                        "advice": "End the transaction inside the function: it may still fail",
                    },
                )
                half.unknown()

        if is_coroutine_function(function):

            @functools.wraps(function)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                async with half_of(args, kwargs) as half:
                    result = await function(*args, **kwargs)
                    take_outcome(half, result, args, kwargs)
                return result

            setattr(asynchronous, _LAYER, layer)
            return cast("F", asynchronous)

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            with half_of(args, kwargs) as half:
                result = function(*args, **kwargs)
                take_outcome(half, result, args, kwargs)
            return result

        setattr(synchronous, _LAYER, layer)
        return cast("F", synchronous)

    return decorate


def _refuse(function: Callable[..., Any], result: Any) -> None:
    """Raise ConfigurationError for a result that tells no outcome, but may be meant to.

    The block receives the error, and leaves the outcome to a check.
    """
    if problem := uncalled(result):
        raise ConfigurationError(
            f"{name_of(function)} returned {problem}: put `transactional` right above its `async "
            "def`, below decorators that hide it"
        )
    # An enumeration of the application's own may have the same names.
    if type(result) is str and result in _OUTCOMES:
        raise ConfigurationError(
            f"{name_of(function)} returned the text {result!r}: return LocalOutcome.{result}, or "
            "another text to its callers"
        )
