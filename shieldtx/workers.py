"""The worker processes of a service: which passes each ticks, and how often."""

from __future__ import annotations

from datetime import timedelta

from shieldtx.app import ShieldTx
from shieldtx.scheduling import Tick, Worker

RENEWALS_PER_LEASE = 4
HOUSEKEEPING = timedelta(minutes=1)
LINGER = timedelta(milliseconds=100)
"""How long the relay stays awake for the next hint."""


def relay_worker(app: ShieldTx) -> Worker:
    """Build the process that relays, renews its leases and keeps house."""
    relay = app.relay()
    housekeeping = app.housekeeping()
    lease = app.settings.relay_lease

    def renew() -> bool:
        before = relay.shards
        if relay.renew().shards - before:
            worker.wake("poll")
        return False

    def poll() -> bool:
        done = relay.run_once()
        return done.backlog and not done.outage

    def keep_house() -> bool:
        return housekeeping.run_once().more

    def close() -> None:
        if listener is not None:
            listener.close()
        relay.close()

    worker = Worker(
        name="relay",
        ticks=[
            Tick(name="renew", run=renew, every=lease / RENEWALS_PER_LEASE),
            Tick(
                name="poll",
                run=poll,
                every=app.settings.relay_poll_interval,
                linger=LINGER,
            ),
            Tick(name="housekeeping", run=keep_house, every=HOUSEKEEPING),
        ],
        close=close,
        stop_timeout=app.settings.stop_timeout,
        watchdog=app.settings.watchdog,
    )
    listener = app.listener(lambda: worker.wake("poll"))
    if listener is not None:
        listener.start()
    return worker


def consumer_worker(app: ShieldTx, group: str) -> Worker:
    """Build the process that consumes for one group; its passes wait for records themselves."""
    consumer = app.consumer_worker(group, stopping=lambda: worker.stopping)

    def consume() -> bool:
        consumer.run_once()
        return True

    worker = Worker(
        name=f"consumer {group}",
        # The interval is the pause after a failed pass.
        ticks=[Tick(name="poll", run=consume, every=timedelta(seconds=1))],
        close=consumer.close,
        stop_timeout=app.settings.stop_timeout,
        watchdog=app.settings.watchdog,
    )
    return worker
