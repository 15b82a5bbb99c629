"""Statements that differ in their parameters alone are built once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_Statement = TypeVar("_Statement")

_MOST: Final = 256
"""The cached variants of each statement: the schemas that a process may use without rebuilds."""


def built_once(build: Callable[_P, _Statement]) -> Callable[_P, _Statement]:
    """Build a statement once for the same tables, dialect and options, all of them hashable.

    A statement costs more to build than to run. `inspect.unwrap` returns the function itself.
    """
    return cast("Callable[_P, _Statement]", lru_cache(_MOST)(build))
