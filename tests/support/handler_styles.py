"""How a test's handlers run: as plain functions or coroutines, one or several at the same time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from shieldtx.consumer.handlers import ConsumerGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerStyle:
    """The driver of coroutine handlers, None for plain functions; and the lanes of a consumer."""

    name: str
    driver: str | None = None
    lanes: int = 1

    def __str__(self) -> str:
        return self.name

    def engine(self, url: str) -> AsyncEngine | None:
        """Make the engine of the handlers, if they are coroutines."""
        if self.driver is None:
            return None
        return create_async_engine(url.replace("+psycopg", f"+{self.driver}"))

    def group(self, group: ConsumerGroup) -> ConsumerGroup:
        """Make the group run each declared function in this style; it may be styled already."""
        if self.driver is not None and "handles" not in vars(group):
            for name in ("handles", "handles_many", "compensates"):
                setattr(group, name, self.declaring(getattr(group, name)))
        return group

    def declaring(self, declare: Callable[..., Any]) -> Callable[..., Any]:
        """Return a decorator that declares a function in this style."""
        return declare if self.driver is None else _declaring_coroutines(declare)


PLAIN = HandlerStyle(name="plain")
STYLES = [
    PLAIN,
    HandlerStyle(name="coroutine", driver="psycopg"),
    HandlerStyle(name="asyncpg", driver="asyncpg"),
    HandlerStyle(name="threads", lanes=4),
    HandlerStyle(name="tasks", driver="psycopg", lanes=4),
]
"""For a module's HANDLER_STYLES: its tests run once in each of them."""


def _declaring_coroutines(declare: Callable[..., Any]) -> Callable[..., Any]:
    def declare_coroutine(*args: Any, **options: Any) -> Callable[[Any], Any]:
        decorator = declare(*args, **options)

        def decorate(function: Any) -> Any:
            decorator(function if inspect.iscoroutinefunction(function) else awaited(function))
            return function

        return decorate

    return declare_coroutine


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine handler that does the work of a plain one."""

    async def handler(session: AsyncSession, given: Any) -> Any:
        return await session.run_sync(function, given)

    return handler
