"""The running services of a history: real relays and consumers, whose handlers all succeed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.consumer.consumer import Consumer
from shieldtx.relay.relay import Relay
from shieldtx.testing.memory_broker import MemoryBroker
from tests.spark.planting import SHARDS, Service
from tests.support.service import drain
from tests.verification.oracle.setting import Setting, undo_of

Effect = tuple[str, str, UUID]
"""A service, one of its groups, and the event that its handler was called with."""


@dataclass(kw_only=True, slots=True)
class Services:
    """All services of a setting, on one broker without earlier records."""

    setting: Setting
    services: Mapping[str, Service]
    applied: list[Effect] = field(default_factory=list)
    """In the order in which handlers were called."""
    _apps: list[ShieldTx] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Open the applications."""
        broker = MemoryBroker()
        self._apps = [self._opened(name, broker) for name in self.setting.services]
        for app in self._apps:
            broker.topics().create(app.topics(), partitions=2, replication=1)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the applications."""
        self._apps.clear()

    def go_on(self) -> None:
        """Run until no work is left; new workers poll everything at once."""
        with ExitStack() as open_:
            workers: list[Relay | Consumer] = []
            for app in self._apps:
                own: list[Relay | Consumer] = [app.build_consumer(group) for group in app.groups]
                own.append(app.build_relay())
                for worker in own:
                    open_.callback(worker.close)
                workers += own
            drain(*workers)

    def write(self, source: str, event_type: str, *, key: str) -> None:
        """Let a service write an event."""
        app = self._apps[self.setting.services.index(source)]
        with Session(self.services[source].engine) as session, session.begin():
            app.outbox.add(session, Event(type=event_type, key=key))

    def _opened(self, name: str, broker: MemoryBroker) -> ShieldTx:
        service = self.services[name]
        settings = Settings(
            source=name,
            database_url=service.url,
            database_schema=service.schema,
            shards=SHARDS,
            relay_wakeup=False,
        )
        app = ShieldTx(settings, engine=service.engine, broker=broker)
        for writer in self.setting.services:
            for event_type in self.setting.types_of(writer):
                app.declare(event_type, topic=writer)
        for group in self.setting.groups:
            if group.service == name:
                for event_type in group.types:
                    app.consumer(group.name).handles(event_type)(self._handler(name, group.name))
                for event_type in group.undoes:
                    app.consumer(group.name).compensates(event_type)(_compensation)
        for event_type in self.setting.types_of(name):
            app.consumer(undo_of(name)).compensates(event_type)(_compensation)
        return app

    def _handler(self, service: str, group: str) -> Callable[[Session, Event], None]:
        def handler(session: Session, event: Event) -> None:
            del session
            self.applied.append((service, group, event.id))

        return handler


def _compensation(session: Session, event: Event) -> None:
    del session, event
