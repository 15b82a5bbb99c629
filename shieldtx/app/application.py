"""ShieldTx: the entry point of a service: declares, writes events, builds relay and consumers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from shieldtx._extras import import_extra
from shieldtx.app import builders
from shieldtx.app.connections import Connections
from shieldtx.app.declarations import Declarations
from shieldtx.app.declared_names import DeclaredNames
from shieldtx.app.event_methods import EventMethods
from shieldtx.app.half_message_declarations import HalfMessageDeclarations
from shieldtx.app.half_message_methods import HalfMessageMethods
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.app.optional_metrics import OptionalMetrics
from shieldtx.app.replays import ParkedCheck
from shieldtx.app.stores import Stores
from shieldtx.app.wiring import GivenParts, Wiring
from shieldtx.consumer.consumer import LONGEST_PASS, Consumer
from shieldtx.domain.callables import check_callable
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.delayed_events import DelayedEvents
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.broker import Broker
from shieldtx.relay.relay import Relay
from shieldtx.retention import RetentionService
from shieldtx.settings import environment
from shieldtx.settings.settings import Settings
from shieldtx.store.tables import Tables
from shieldtx.tracing.recorder import TraceRecorder

if TYPE_CHECKING:
    from shieldtx.store.schema import Schema


class ShieldTx(EventMethods, HalfMessageMethods, DeclaredNames):
    """The entry point of a service: declares events and handlers, and builds its workers.

    The constructor does not connect. Without `settings`, they are read from the environment at
    their first use. `engine` and `broker` replace those of the settings, in tests.
    `async_engine` is the engine of coroutine handlers, with psycopg or asyncpg, where it is not to
    be made from the settings.
    `traceparent` returns the W3C trace context of the caller, which is stored with each event.
    `kafka_options` are added to SHIELDTX_KAFKA_OPTIONS. `kafka_token` returns a token for
    OAUTHBEARER, and the Unix time in seconds at which it expires. Raises ConfigurationError for
    options that are refused.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        engine: Engine | None = None,
        async_engine: AsyncEngine | None = None,
        broker: Broker | None = None,
        traceparent: Callable[[], str | None] = lambda: None,
        kafka_options: Mapping[str, Any] | None = None,
        kafka_token: Callable[[], tuple[str, float]] | None = None,
    ) -> None:
        check_callable(traceparent, what="ShieldTx(traceparent=...)", call="traceparent()")
        if kafka_token is not None:
            check_callable(kafka_token, what="ShieldTx(kafka_token=...)", call="kafka_token()")
        self._kafka_token = kafka_token
        self._kafka_options = kafka_options or {}
        self.hooks = Hooks()
        """Registers an application's hooks around each send and each attempt."""
        self._declarations = Declarations(lambda: self.settings)
        self._half_message_declarations = HalfMessageDeclarations(
            self.event_types, messages=lambda: self.half_messages.messages
        )
        self._given = GivenParts(engine=engine, async_engine=async_engine, traceparent=traceparent)
        self._broker = broker
        self._wiring = None if settings is None else self._wired_as_declared(settings)
        self._wiring_lock = Lock()

    @classmethod
    def from_env(
        cls,
        *,
        engine: Engine | None = None,
        async_engine: AsyncEngine | None = None,
        broker: Broker | None = None,
        traceparent: Callable[[], str | None] = lambda: None,
        kafka_options: Mapping[str, Any] | None = None,
        kafka_token: Callable[[], tuple[str, float]] | None = None,
    ) -> Self:
        """Return a ShieldTx for the `SHIELDTX_*` settings; raises ConfigurationError.

        The arguments are those of the constructor. Without any required setting in the environment,
        the settings are read at their first use, which then raises the error: a test, or a tool,
        can import the module. `shield.settings` in the start of a service finds a missing one.
        """
        return cls(
            Settings.from_env() if environment.is_configured(os.environ) else None,
            engine=engine,
            async_engine=async_engine,
            broker=broker,
            traceparent=traceparent,
            kafka_options=kafka_options,
            kafka_token=kafka_token,
        )

    def _wired_as_declared(self, settings: Settings) -> Wiring:
        if self._kafka_options:
            settings = settings.with_kafka_options(self._kafka_options)
        return self._wired(settings, self._given)

    def _wired(self, settings: Settings, given: GivenParts) -> Wiring:
        self._declarations.apply(settings)
        return Wiring(
            settings,
            given=given,
            declarations=self._declarations,
            half_messages=self._half_message_declarations,
            hooks=self.hooks,
        )

    def _wire(self) -> Wiring:
        if self._wiring is None:
            with self._wiring_lock:
                if self._wiring is None:
                    self._wiring = self._wired_as_declared(Settings.from_env())
        return self._wiring

    @property
    def is_wired(self) -> bool:
        """Whether the settings have been read."""
        return self._wiring is not None

    @property
    def given_engine(self) -> Engine | None:
        """The engine that the application has given, None where the settings make it."""
        return self._given.engine

    @contextmanager
    def rewired(
        self,
        settings: Settings,
        *,
        engine: Engine,
        async_engine: AsyncEngine | None,
        broker: Broker,
    ) -> Iterator[None]:
        """Use other settings, other engines and another broker during the block.

        The given `async_engine` stays with a given engine. For `shieldtx.testing`: declarations
        stay, and everything else is as before after the block. Keep no part of this object, such as
        its `outbox`, across the beginning or the end.
        """
        if async_engine is None and engine is self._given.engine:
            async_engine = self._given.async_engine
        given = replace(self._given, engine=engine, async_engine=async_engine)
        replacement = self._wired(settings, given)
        wiring, given_broker = self._wiring, self._broker
        opened_broker = vars(self).pop("broker", None)
        if wiring is not None:
            wiring.tracer.is_paused = True
        self._broker, self._wiring = broker, replacement
        try:
            yield
        finally:
            vars(self).pop("broker", None)
            self._wiring, self._broker = wiring, given_broker
            if opened_broker is not None:
                self.broker = opened_broker
            if wiring is not None:
                wiring.tracer.is_paused = False
                self._declarations.apply(wiring.settings)
            replacement.close()

    @property
    def settings(self) -> Settings:
        """The settings; raises ConfigurationError for those that the environment lacks."""
        return self._wire().settings

    @property
    def outbox(self) -> Outbox:
        """Adds events to a transaction: `outbox.add(session, Event(...))`."""
        return self._wire().outbox

    @property
    def delayed(self) -> DelayedEvents:
        """Lists, cancels and reschedules delayed events."""
        return self._wire().delayed

    @property
    def half_messages(self) -> HalfMessageWiring:
        """The half messages of a service: the methods `half`, `half_prepare`, `guard` call it."""
        return self._wire().half_messages

    @property
    def stores(self) -> Stores:
        """Stores through which the command line reads and changes this service's tables."""
        return self._wire().stores

    @property
    def tracer(self) -> TraceRecorder:
        """Writes an entry for each send and each attempt if SHIELDTX_TRACE is set."""
        return self._wire().tracer

    @property
    def metrics(self) -> OptionalMetrics:
        """The metrics of this process's workers: a collector for prometheus_client's registries."""
        return self._wire().metrics

    # --- workers ----------------------------------------------------------------------------------

    def build_relay(self, name: str | None = None) -> Relay:
        """Return a relay; its `name`, by default a new one, must be unique, also among restarts."""
        return builders.build_relay(
            self._wire(),
            declarations=self._declarations,
            broker=self.broker,
            hooks=self.hooks,
            name=name or builders.worker_name(),
        )

    def build_consumer(
        self, group: str, *, stopping: Callable[[], bool] = lambda: False
    ) -> Consumer:
        """Return the consumer of a declared group; raises ConfigurationError for an unknown group.

        A pass begins no further attempt once `stopping` returns true.
        """
        return builders.build_consumer(
            self._wire(),
            group=group,
            declarations=self._declarations,
            broker=self.broker,
            hooks=self.hooks,
            stopping=stopping,
        )

    def parked_check(self) -> ParkedCheck:
        """Return the check that a parked record must pass before it is received again."""
        return ParkedCheck(self.settings, self._declarations)

    def build_retention(self) -> RetentionService:
        """Return the purge of this service's tables, and of its barriers in other databases."""
        return builders.build_retention(
            self.settings, connections=self.connections, half_messages=self.half_messages
        )

    # --- tables and connections -------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return self.connections.tables

    @property
    def schema(self) -> Schema:
        """Creates and checks the tables."""
        return self.stores.schema()

    @property
    def engine(self) -> Engine:
        """The engine of relay and consumers; services write through sessions of their own."""
        return self.connections.engine

    @property
    def connections(self) -> Connections:
        """The engines of this service, and the hints that wake its relays."""
        return self._wire().connections

    @cached_property
    def broker(self) -> Broker:
        """The broker of the settings, or the one given to the constructor."""
        if self._broker is not None:
            return self._broker
        with import_extra("the Kafka broker"):
            from shieldtx.brokers.kafka.broker import KafkaBroker  # noqa: PLC0415  writers need no Kafka client

        return KafkaBroker.from_settings(
            self.settings,
            token=self._kafka_token,
            longest_pass=lambda: (
                self._declarations.longest_lease() + timedelta(seconds=LONGEST_PASS)
            ),
        )

    def close(self) -> None:
        """Close the connections that this object has opened."""
        if self._wiring is not None:
            self._wiring.close()
