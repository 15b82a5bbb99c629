"""Functions that an application registers: checked when declared, and after each call."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterator,
)
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import UpdateBase

from shieldtx.errors import ConfigurationError, HandlerError

_UNCALLED = (
    Awaitable,
    AsyncGenerator,
    AsyncContextDecorator,
    ContextDecorator,
    Future,
    Generator,
    filter,
    map,
    partial,
    zip,
)
"""Types of results whose code has not run, or not completely, when the call returns."""

_NAMED: Final = 2
"""How many parts of a path are shown: the file and its folder."""

_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
"""Types whose objects are skipped at once: a result may have very many."""


class _NotShown:
    def __repr__(self) -> str:
        return "..."


_NOT_SHOWN = _NotShown()


def check_callable(function: object, *, what: str, call: str, accepts_async: bool = False) -> None:
    """Refuse a function that the plain `call`, such as "handler(session, event)", would not run.

    Raises ConfigurationError for a coroutine or generator function, a class, an object that is not
    callable, and a signature that does not take the positional arguments of `call`. `what` names
    the declaration in the message. An empty `call` accepts any signature; `accepts_async` accepts a
    coroutine function.
    """
    problem = _problem(function, call, accepts_async=accepts_async)
    if problem:
        raise ConfigurationError(f"{what}: {_described(function)} {problem}")


def is_coroutine_function(function: object) -> bool:
    """Whether calling a function returns a coroutine: `async def`, also inside of a partial."""
    return inspect.iscoroutinefunction(_code_of(function))


def run(function: Callable[..., object], *args: object) -> None:
    """Call a function for what it does; raises HandlerError when its code has not run."""
    check_result(function(*args), function)


def run_for_effect(function: Callable[..., object], *args: object) -> None:
    """Call a handler; raises HandlerError when a part of its work was not done."""
    check_effect(function(*args), function)


def check_result(result: object, function: object) -> None:
    """Raise HandlerError when a call returned an object whose code has not run; see `uncalled`."""
    if problem := uncalled(result):
        raise HandlerError(
            f"{_described(function)} returned {problem}. Register a plain function that does the "
            "work before it returns"
        )


def check_effect(result: object, function: object) -> None:
    """Raise HandlerError when a handler returned what it should have run, raised or executed.

    Its result has no other use, so that collections are searched through.
    """
    if result is None:
        return
    check_result(result, function)
    if problem := _undone(result):
        raise HandlerError(f"{_described(function)} returned {problem}")


def uncalled(result: object) -> str:
    """Describe a coroutine, a generator or the like that a call returned; "" for anything else.

    Lambdas and decorators hide them from check_callable. The result is closed, so that Python emits
    no warning about it.
    """
    if isinstance(result, list | tuple | set | frozenset):
        return _uncalled_in(result)
    if result is None or not (isinstance(result, _UNCALLED) or inspect.isroutine(result)):
        return ""
    _close(result)
    return f"a {type(result).__name__}, whose code has not run, so that its work is not done"


def _uncalled_in(results: Collection[object]) -> str:
    """Describe the unrun results among several; "" where all have run, whatever their types."""
    waiting = [each for each in results if isinstance(each, Awaitable | Future)]
    if not waiting:
        return ""
    for each in waiting:
        _close(each)
    return (
        f"a {type(results).__name__} with a {type(waiting[0]).__name__}, whose code has not run, "
        "so that its work is not done"
    )


def _undone(result: object) -> str:
    """Describe what a handler has returned in place of doing it; "" for anything else."""
    if isinstance(result, BaseException):
        return f"a {type(result).__name__}, which it did not raise. Use `raise`"
    if inspect.isclass(result) and issubclass(result, BaseException):
        return f"the class {result.__name__}, which it did not raise. Use `raise`"
    if isinstance(result, UpdateBase):
        return f"an {type(result).__name__} statement, which it did not execute. Execute it"
    unrun = [each for each in _inside(result) if isinstance(each, _UNCALLED)]
    for each in unrun:
        _close(each)
    if unrun:
        return (
            f"a {type(result).__name__} with a {type(unrun[0]).__name__}, whose code has not run, "
            "so that its work is not done"
        )
    return ""


def _inside(result: object) -> Iterator[object]:
    """Yield all parts of a collection that may have code to run."""
    waiting, seen = [result], set[int]()
    while waiting:
        part = waiting.pop()
        if type(part) in _PLAIN or id(part) in seen:
            continue
        if isinstance(part, dict):
            inside: Collection[object] = part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            inside = part
        else:
            yield part
            continue
        seen.add(id(part))
        waiting.extend(inside)


def _problem(function: object, call: str, *, accepts_async: bool) -> str:
    if inspect.isclass(function):
        return "is a class: calling it makes an object and does no work. Give a function"
    if not callable(function):
        return "is not callable. Give a function"
    code = _code_of(function)
    if inspect.isclass(code):
        return "makes an object of a class when it is called, and does no work. Give a function"
    if inspect.iscoroutinefunction(code) and not accepts_async:
        return (
            "is a coroutine function: shieldtx calls it without awaiting it, so it would do "
            "nothing. Give a plain `def`; asyncio.run(...) inside it runs a coroutine"
        )
    if inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
        return (
            "is a generator function (it has a `yield`): calling it runs none of its code. Give a "
            "function without `yield`"
        )
    return _misfit(function, call)


def _misfit(function: Callable[..., Any], call: str) -> str:
    """Return why a signature does not take the arguments of a call; "" where it does."""
    if not call:
        return ""
    names = call.partition("(")[2].rstrip(")").split(", ")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return ""
    try:
        signature.bind(*[name for name in names if name])
    except TypeError as error:
        return f"cannot be called as {call}: its signature is {_shown(signature)} ({error})"
    return ""


def _code_of(function: object) -> object:
    """Return the function inside partials, methods and callable objects."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function) or isinstance(function, staticmethod):
            function = function.__func__
        elif inspect.isroutine(function) or inspect.isclass(function):
            return function
        else:
            inside = inspect.getattr_static(type(function), "__call__", None)
            if not inspect.isfunction(inside):
                return function
            function = inside


def innermost_of(function: object) -> object:
    """Return the function inside decorators, too, if they name it as `functools.wraps` does."""
    while (inside := inspect.unwrap(_code_of(function))) is not function:  # type: ignore[arg-type]
        function = inside
    return function


def name_of(function: object) -> str:
    """Return the name of a function, never its `repr`.

    The `repr` of a partial shows its arguments, and the `repr` of a dataclass its fields.
    """
    names = (getattr(each, "__qualname__", None) for each in (function, _code_of(function)))
    return next(filter(None, names), f"an object of type {type(function).__qualname__}")


def _described(function: object) -> str:
    """Return the name of a function, with the file and line of its code if it has any."""
    lines = getattr(innermost_of(function), "__code__", None)
    place = "" if lines is None else f" ({shown_path(lines.co_filename)}:{lines.co_firstlineno})"
    return f"{name_of(function)}{place}"


def shown_path(file: str) -> str:
    """Return the file and its folder: reasons reach other services, which know no more of it."""
    return "/".join(Path(file).parts[-_NAMED:])


def _shown(signature: inspect.Signature) -> str:
    """Return a signature without defaults: a partial's arguments are among them."""
    given = signature.parameters.values()
    shown = [p if p.default is p.empty else p.replace(default=_NOT_SHOWN) for p in given]
    return str(signature.replace(parameters=shown))


def _close(result: object) -> None:
    """Close a result that was not run; an async generator that was not started needs no close."""
    if isinstance(result, Coroutine | Generator):
        result.close()
    elif isinstance(result, Future) or inspect.isawaitable(result):
        cancel = getattr(result, "cancel", None)
        if cancel is not None:
            cancel()
