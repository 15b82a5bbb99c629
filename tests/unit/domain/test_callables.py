"""Functions that a plain call would not run are refused at their declaration."""

from __future__ import annotations

import functools
import gc
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr

from shieldtx import Settings, ShieldTx
from shieldtx.domain.callables import (
    check_callable,
    check_result,
    is_coroutine_function,
    uncalled,
)
from shieldtx.errors import ConfigurationError, HandlerError


@pytest.fixture
def shield() -> ShieldTx:
    return ShieldTx(Settings(source="orders", database_url=SecretStr("sqlite://")))


async def coroutine_function(*args: Any) -> None: ...


async def async_generator_function(*args: Any) -> AsyncIterator[None]:
    yield


def generator_function(*args: Any) -> Iterator[None]:
    yield


class AsyncCall:
    async def __call__(self, *args: Any) -> None: ...


class Methods:
    async def later(self, *args: Any) -> None: ...


class AnyClass:
    def __init__(self, *args: Any) -> None: ...


def of_six(a, b, c, d, e, f) -> None: ...


DECLARATIONS: dict[str, Callable[[ShieldTx], Callable[[Any], Any]]] = {
    "handles": lambda s: s.consumer("stock").handles("placed"),
    "handles_many": lambda s: s.consumer("stock").handles_many("placed"),
    "compensates": lambda s: s.consumer("stock").compensates("placed"),
    "intercepts": lambda s: s.consumer("stock").intercepts,
    "local_rollback": lambda s: s.local_rollback("placed"),
    "checks": lambda s: s.checks("placed"),
    "before_send": lambda s: s.hooks.before_send,
    "after_send": lambda s: s.hooks.after_send,
    "on_send_error": lambda s: s.hooks.on_send_error,
    "before_consume": lambda s: s.hooks.before_consume,
    "after_consume": lambda s: s.hooks.after_consume,
    "on_consume_error": lambda s: s.hooks.on_consume_error,
    "traceparent": lambda s: lambda f: ShieldTx(s.settings, traceparent=f),
    "key": lambda s: lambda f: s.publishes("placed", key=f)(lambda session: None),
    "biz_key": lambda s: lambda f: s.publishes("placed", biz_key=f)(lambda session: None),
    "delay": lambda s: lambda f: s.publishes("placed", delay=f)(lambda session: None),
    "payload": lambda s: lambda f: s.transactional("placed", payload=f)(lambda session: None),
}
OF_VALUES = {"key", "biz_key", "delay", "payload"}
"""Arguments that may be a class or a name, too."""

AWAITED = {"handles", "handles_many", "compensates", "local_rollback", "checks"}
"""Declarations whose coroutine functions are awaited."""

WRONG: dict[str, tuple[Any, str]] = {
    "coroutine function": (coroutine_function, "is a coroutine function"),
    "async generator": (async_generator_function, "is a generator function"),
    "generator": (generator_function, "is a generator function"),
    "async call": (AsyncCall(), "is a coroutine function"),
    "partial": (functools.partial(coroutine_function, 1), "is a coroutine function"),
    "partial of an object": (functools.partial(AsyncCall(), 1), "is a coroutine function"),
    "method": (Methods().later, "is a coroutine function"),
    "signature": (of_six, "cannot be called as"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_function_that_a_plain_call_does_not_run_is_refused(shield, declaration, wrong):
    function, problem = WRONG[wrong]
    if declaration in AWAITED and problem == "is a coroutine function":
        assert DECLARATIONS[declaration](shield)(function) is function
        assert is_coroutine_function(function)
        return
    with pytest.raises(ConfigurationError, match=problem):
        DECLARATIONS[declaration](shield)(function)


@pytest.mark.parametrize("declaration", [name for name in DECLARATIONS if name not in OF_VALUES])
def test_class_is_refused_as_a_handler(shield, declaration):
    with pytest.raises(ConfigurationError, match="is a class"):
        DECLARATIONS[declaration](shield)(AnyClass)
    with pytest.raises(ConfigurationError, match="of a class"):
        DECLARATIONS[declaration](shield)(functools.partial(AnyClass, 1))


@pytest.mark.parametrize("declaration", [name for name in DECLARATIONS if name not in OF_VALUES])
@pytest.mark.parametrize("value", [None, 7, classmethod(len)])
def test_object_that_is_not_callable_is_refused(shield, declaration, value):
    with pytest.raises(ConfigurationError, match="is not callable"):
        DECLARATIONS[declaration](shield)(value)


def test_refusal_names_the_declaration_place_and_remedy(shield):
    place = rf"test_callables\.py:{generator_function.__code__.co_firstlineno}\)"
    message = (
        rf"consumer group 'stock', handler for COMMIT of 'placed': generator_function \(.*{place}"
    )
    with pytest.raises(ConfigurationError, match=message) as refused:
        shield.consumer("stock").handles("placed")(generator_function)
    assert "Give a function without `yield`" in str(refused.value)
    with pytest.raises(ConfigurationError, match="Give a plain `def`"):
        shield.hooks.before_send(coroutine_function)
    with pytest.raises(ConfigurationError, match=re.escape("handler(session, event)")):
        shield.consumer("stock").handles("placed")(of_six)


SECRET = "DE8937-SECRET"


@dataclass
class Bound:
    key: str

    def __call__(self, session: Any, event: Any) -> object:
        return map(str, [session, event])


def bound(key: str, session: Any, event: Any, *, more: str = SECRET) -> object:
    return map(str, [])


def of_three(session: Any, event: Any, third: Any, *, more: str = SECRET) -> None: ...


class Answers:
    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return self.key


HOLDING: dict[str, tuple[Any, str]] = {
    "partial": (functools.partial(bound, SECRET), "bound"),
    "keyword": (functools.partial(bound, key=SECRET), "bound"),
    "dataclass": (Bound(SECRET), "Bound.__call__"),
    "partial of one": (functools.partial(Bound(SECRET)), "Bound.__call__"),
    "method": (Bound(SECRET).__call__, "Bound.__call__"),
    "object": (Answers(SECRET), "an object of type Answers"),
    "partial of a class": (functools.partial(Bound, SECRET), "Bound"),
    "signature": (functools.partial(of_three, more=SECRET), "of_three"),
    "text": (SECRET, "an object of type str"),
}


@pytest.mark.parametrize("holding", HOLDING)
def test_errors_name_a_function_without_its_bound_objects(shield, holding):
    function, name = HOLDING[holding]
    said = []
    with pytest.raises(HandlerError) as failed:
        check_result(map(str, []), function)
    said.append(str(failed.value))
    for call in ("handler(session, event, third, fourth)", "handler(session)"):
        with pytest.raises(ConfigurationError) as refused:
            check_callable(function, what="handler", call=call)
        said.append(str(refused.value))
    assert not [text for text in said if SECRET in text]
    assert not [text for text in said if name not in text]


@pytest.mark.parametrize("way", ["publishes", "transactional"])
@pytest.mark.parametrize("wrong", [generator_function, async_generator_function, AnyClass, 7])
def test_decorated_method_counts_as_the_function_that_runs(shield, way, wrong):
    more = {"payload": "order"} if way == "transactional" else {}
    with pytest.raises(ConfigurationError, match=r"'placed': .* Give a"):
        getattr(shield, way)("placed", **more)(wrong)


def test_decorated_methods_may_be_coroutine_functions(shield):
    @shield.publishes("placed", key=str)
    async def place(session) -> None: ...

    @shield.transactional("paid", payload="order")
    async def pay(session, order) -> None: ...


def test_any_callable_that_runs_at_once_is_accepted(shield):
    class Handlers:
        def __call__(self, session, event, more=None) -> None: ...

        @staticmethod
        def static(session, event) -> None: ...

        def method(self, session, event, *more) -> None: ...

    @functools.wraps(of_six)
    def injected(session, event) -> None: ...

    handlers = [Handlers(), Handlers.static, Handlers().method, injected, print]
    for number, handler in enumerate([*handlers, functools.partial(injected)]):
        assert shield.consumer("stock").handles(f"type{number}")(handler) is handler


def of_contextmanager() -> Any:
    return contextmanager(generator_function)()


@pytest.mark.parametrize(
    "make",
    [
        coroutine_function,
        generator_function,
        async_generator_function,
        of_contextmanager,
        lambda: functools.partial(print),
        lambda: map(print, [1]),
        lambda: print,
        Future,
    ],
)
def test_result_whose_code_has_not_run_is_an_error(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HandlerError, match=r"returned a \w+, whose code has not run"):
            check_result(make(), make)
        gc.collect()


def test_error_of_a_result_names_the_file_without_its_path():
    with pytest.raises(HandlerError) as refused:
        check_result(generator_function(), generator_function)

    assert "(domain/test_callables.py:" in str(refused.value)


@pytest.mark.parametrize("result", [None, 0, "done", [1], {"a": 1}, object(), AnyClass(), 1.5])
def test_plain_value_is_not_such_a_result(result):
    assert uncalled(result) == ""
