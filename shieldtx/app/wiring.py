"""The parts of a service that depend on its settings: connections, outbox, stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from shieldtx.app.connections import Connections
from shieldtx.app.declarations import Declarations
from shieldtx.app.half_message_declarations import HalfMessageDeclarations
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.app.optional_metrics import OptionalMetrics
from shieldtx.app.stores import Stores
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.delayed_events import DelayedEvents
from shieldtx.outbox.outbox import Outbox
from shieldtx.settings.settings import Settings
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.tracing.recorder import TraceRecorder


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenParts:
    """What an application gives to its ShieldTx; engines replace the URL of the settings."""

    engine: Engine | None
    async_engine: AsyncEngine | None
    traceparent: Callable[[], str | None]


class Wiring:
    """Connects the declarations of a service to the database of its settings."""

    def __init__(
        self,
        settings: Settings,
        *,
        given: GivenParts,
        declarations: Declarations,
        half_messages: HalfMessageDeclarations,
        hooks: Hooks,
    ) -> None:
        """Connect to nothing yet."""
        self.settings = settings
        self.connections = connections = Connections(
            settings,
            engine=given.engine,
            async_engine=given.async_engine,
            longest_lease=declarations.longest_lease,
        )
        tables = connections.tables
        self.outbox = Outbox(
            source=settings.source,
            event_types=declarations.event_types,
            writer=SqlOutboxWriter(
                tables, shards=settings.shards, relays_engine=lambda: connections.engine
            ),
            traceparent=given.traceparent,
            after_commit=connections.hint,
        )
        self.delayed = DelayedEvents(outbox=self.outbox, store=SqlDelayedEventStore(tables))
        self.half_messages = HalfMessageWiring(
            settings,
            declared=half_messages,
            engine=lambda: connections.engine,
            checks_engine=lambda: connections.checks_engine,
            to_envelope=self.outbox.to_envelope,
            after_commit=connections.hint,
            run_on_loop=lambda call: connections.event_loop.run([call])[0],
        )
        self.stores = Stores(settings, connections=connections, half_messages=self.half_messages)
        self.metrics = OptionalMetrics(settings)
        self.tracer = TraceRecorder(self.stores.trace)
        if settings.trace:
            self.tracer.attach(hooks)

    def close(self) -> None:
        """Close the connections that this object has opened."""
        self.tracer.close()
        self.connections.close()
