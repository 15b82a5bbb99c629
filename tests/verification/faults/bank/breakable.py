"""ShieldTx as the banks use it: its ports break where the environment requests it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from shieldtx import Settings, ShieldTx
from shieldtx.app import workers
from shieldtx.app.stores import Stores
from shieldtx.consumer.consumer import Consumer
from shieldtx.consumer.fetcher import PrefetchingFetcher
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.lanes import Lane
from shieldtx.domain.events import Envelope
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.relay.relay import Relay
from shieldtx.retention import RetentionService
from shieldtx.store import inbox_receiver
from shieldtx.store.dead_letters import SqlDeadLetters
from tests.support.handler_styles import HandlerStyle
from tests.verification.faults import failpoints as points
from tests.verification.faults.bank import defects
from tests.verification.faults.mutants import MUTANTS

_BACK_OFF = float(os.environ.get("BANK_BACK_OFF", "0.05"))
QUICK: dict[str, Any] = {
    "first": timedelta(seconds=_BACK_OFF),
    "longest": timedelta(seconds=max(_BACK_OFF, 0.3)),
}
HANDLER_TAKES = float(os.environ.get("BANK_HANDLER_TAKES", "0"))
"""Seconds."""
if "BANK_HALF_TICK" in os.environ:
    # Interval of a relay's search for half messages to check or to park.
    workers.CHECKS = workers.PARKING = timedelta(seconds=float(os.environ["BANK_HALF_TICK"]))

if "BANK_INSERT_CHARACTERS" in os.environ:
    # Size of a consumer's INSERT.
    inbox_receiver._INSERT_CHARACTERS = int(os.environ["BANK_INSERT_CHARACTERS"])


def lease() -> timedelta:
    """Return how long an attempt may take."""
    return timedelta(seconds=float(os.environ.get("BANK_HANDLER_LEASE", "3")))


def membership() -> dict[str, int]:
    """Return how soon a group removes a member, as options of the Kafka client."""
    session = int(float(os.environ.get("BANK_SESSION_TIMEOUT", "15")) * 1000)
    poll_interval = int(float(os.environ.get("BANK_POLL_INTERVAL", "300")) * 1000)
    return {
        "session_timeout_ms": session,
        "heartbeat_interval_ms": session // 5,
        "max_poll_interval_ms": poll_interval,
    }


class BreakableShield(ShieldTx):
    """Wraps the ports of every service that it builds in failpoints; applies a mutant, if any."""

    def __init__(self, settings: Settings | None, **given: Any) -> None:
        # The stores that failpoints wrap are made at once: so are the settings read.
        settings = settings or Settings.from_env()
        self._style = HandlerStyle(
            name="bank", driver=os.environ.get("BANK_COROUTINES_ON"), lanes=1
        )
        url = settings.database_url.get_secret_value()
        given["async_engine"] = self._style.engine(url)
        super().__init__(settings, **given)
        self.breaker = points.Breaker.from_env()
        # First, because stores build their statements when they are made.
        mutant = os.environ.get("BANK_MUTANT")
        if mutant:
            MUTANTS[mutant].apply(self.breaker)
        self.outbox._writer = points.Breakable(
            self.outbox._writer, self.breaker, points.WRITER_STEPS
        )
        half_messages = self.half_messages
        half_messages._store = points.Breakable(
            half_messages._store, self.breaker, points.HALF_STEPS
        )
        self.stores.dead_letters = self._dead_letters
        half_messages._check_store = points.Breakable(
            half_messages._check_store, self.breaker, points.HALF_STEPS
        )

    def consumer(self, group: str) -> ConsumerGroup:
        return self._style.group(super().consumer(group))

    def build_relay(self, name: str | None = None) -> Relay:
        relay = super().build_relay(name)
        in_flight = relay._in_flight
        store = points.Breakable(in_flight._store, self.breaker, points.RELAY_STEPS)
        in_flight._store = in_flight._failures._store = store
        relay._leases = points.Breakable(relay._leases, self.breaker, points.LEASE_STEPS)
        sender = relay._sender
        sender._publisher = points.BreakablePublisher(sender._publisher, self.breaker, {})
        return relay

    def build_consumer(
        self, group: str, *, stopping: Callable[[], bool] = lambda: False
    ) -> Consumer:
        consumer = super().build_consumer(group, stopping=stopping)
        store = points.BreakableInboxStore(consumer._store, self.breaker, points.INBOX_STEPS)
        consumer._store = consumer._due._store = consumer._probes._store = store
        for lane in consumer._lanes:
            self._break_lane(lane)
        fetcher: Any = cast("PrefetchingFetcher", consumer._fetcher)._fetcher
        fetcher._subscriber._options |= membership()
        fetcher._subscriber = points.Breakable(
            fetcher._subscriber, self.breaker, points.SUBSCRIBER_STEPS
        )
        fetcher._decode = self._broken_decoder(fetcher._decode)
        return consumer

    def _break_lane(self, lane: Lane) -> None:
        """Let the steps of a lane fail; its store may use another engine than its consumer."""
        processor = lane.processor
        store = points.BreakableInboxStore(processor.store, self.breaker, points.INBOX_STEPS)
        processor.store = store
        for part in (
            lane.executor,
            lane.executor._transaction,
            processor.caller,
            processor.recorder,
            processor._compensation,
        ):
            part._store = store

    def build_retention(self) -> RetentionService:
        retention = super().build_retention()
        retention._store = points.Breakable(retention._store, self.breaker, points.PURGE_STEPS)
        return retention

    def _dead_letters(self) -> SqlDeadLetters:
        letters = Stores.dead_letters(self.stores)
        return points.Breakable(letters, self.breaker, points.REPLAY_STEPS)

    def _broken_decoder(
        self, decode: Callable[[ReceivedRecord], Envelope]
    ) -> Callable[[ReceivedRecord], Envelope]:
        def broken(record: ReceivedRecord) -> Envelope:
            with self.breaker.around("decode"):
                return decode(record)

        return broken

    def break_in_handler(self) -> None:
        """Reach the middle of a handler, with its writes not committed."""
        time.sleep(HANDLER_TAKES)
        self.breaker.reach("handler", "before")
        defects.strike()
