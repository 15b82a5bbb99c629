"""`memory_app`: replaces the databases and the broker of services for the time of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pydantic import SecretStr
from sqlalchemy import Engine, MetaData
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import SingletonThreadPool

from shieldtx.app.application import ShieldTx
from shieldtx.errors import ConfigurationError
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord
from shieldtx.settings import environment
from shieldtx.settings.settings import Settings
from shieldtx.store.connections import Pooler
from shieldtx.testing.app import MemoryApp
from shieldtx.testing.clock import MovableClock
from shieldtx.testing.defects import Defects
from shieldtx.testing.memory_broker import MemoryBroker, MemorySubscriber
from shieldtx.testing.memory_database import memory_database


@contextmanager
def memory_app(
    *shields: ShieldTx,
    metadata: MetaData | None = None,
    engine: Engine | None = None,
    async_engine: AsyncEngine | None = None,
) -> Iterator[MemoryApp]:
    """Bring services together in memory, for the block; afterwards they are as before.

    Each service gets an SQLite database with shieldtx's tables, and those of `metadata`; all share
    a broker in memory. A service that was given an engine keeps it. `engine` replaces that of a
    single service, for example by one of PostgreSQL, and `async_engine` that of its coroutine
    handlers. Settings that the environment lacks are filled in. Raises ConfigurationError for
    engines that cannot be used.
    """
    if not shields or len(set(map(id, shields))) < len(shields):
        raise ConfigurationError("memory_app takes one or several ShieldTx objects, each once")
    if len(shields) > 1 and (engine is not None or async_engine is not None):
        raise ConfigurationError("memory_app takes an engine for a single service only")
    broker, clock = _ImpatientBroker(), MovableClock()
    with ExitStack() as stack:
        engines = []
        for shield, settings in zip(shields, _settings_of(shields), strict=True):
            chosen = engine or shield.given_engine or stack.enter_context(memory_database())
            stack.enter_context(_replaced(shield, settings, chosen, async_engine, broker))
            if chosen.dialect.name == "sqlite":
                stack.enter_context(clock.governing(chosen))
            if chosen in (engine, shield.given_engine):
                shield.schema.upgrade()
            if metadata is not None:
                metadata.create_all(chosen)
            engines.append(chosen)
        can_move = all(each.dialect.name == "sqlite" for each in engines)
        defects = [stack.enter_context(Defects.of(shield)) for shield in shields]
        yield MemoryApp(shields, broker=broker, clock=clock if can_move else None, defects=defects)


def _settings_of(shields: Sequence[ShieldTx]) -> Iterator[Settings]:
    """Yield settings of each service, with distinct sources: a process has one environment."""
    sources: set[str] = set()
    for number, shield in enumerate(shields, 1):
        if shield.is_wired or environment.is_configured(os.environ):
            settings = shield.settings
        else:
            settings = Settings(source=f"service-{number}", database_url=SecretStr("sqlite://"))
        if settings.source in sources:
            settings = settings.model_copy(update={"source": f"{settings.source}-{number}"})
        sources.add(settings.source)
        yield settings


@contextmanager
def _replaced(
    shield: ShieldTx,
    settings: Settings,
    engine: Engine,
    async_engine: AsyncEngine | None,
    broker: MemoryBroker,
) -> Iterator[None]:
    if isinstance(engine.pool, SingletonThreadPool):
        raise ConfigurationError(
            "the given engine has an SQLite database in memory for each thread: make it with "
            "poolclass=StaticPool, or leave the engine out for tests"
        )
    changes: dict[str, Any] = {
        "database_url": SecretStr(engine.url.render_as_string(hide_password=False)),
        "database_pooler": Pooler.NONE,
        "relay_wakeup": False,
        # A paused handler has not failed yet: a test of a broken handler would pass.
        "consumer_breaker": 0,
        "shards": None,
        "trace": False,
    }
    if engine.dialect.name == "sqlite":
        changes["database_schema"] = None
    with shield.rewired(
        settings.model_copy(update=changes),
        engine=engine,
        async_engine=async_engine,
        broker=broker,
    ):
        yield


class _ImpatientBroker(MemoryBroker):
    """A broker whose subscribers do not wait for records: in a test, nobody else publishes."""

    def subscriber(self, group: str, topics: Sequence[str]) -> MemorySubscriber:
        subscriber = super().subscriber(group, topics)
        return _ImpatientSubscriber(self._cluster, subscriber.member)


class _ImpatientSubscriber(MemorySubscriber):
    def poll(
        self,
        *,
        timeout: float,  # noqa: ARG002  nothing is waited for
        limit: int,
        limit_bytes: int = BATCH_BYTES,
    ) -> Sequence[ReceivedRecord]:
        return super().poll(timeout=0.0, limit=limit, limit_bytes=limit_bytes)
