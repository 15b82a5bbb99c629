"""The worker processes of a service: which passes each ticks, and how often."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from shieldtx.app import ShieldTx
from shieldtx.checkback import CheckBack
from shieldtx.scheduling import Tick, Worker

RENEWALS_PER_LEASE = 4
HOUSEKEEPING = timedelta(minutes=1)
CHECKS = timedelta(seconds=1)
"""Between two looks for half messages that are due for a check."""
PARKING = timedelta(seconds=10)
LINGER = timedelta(milliseconds=100)
"""How long the relay stays awake for the next hint."""


def relay_worker(app: ShieldTx) -> Worker:
    """Build the process that relays, renews its leases, checks half messages and keeps house."""
    relay = app.relay()
    housekeeping = app.housekeeping()
    lease, poll_interval = app.settings.relay_lease, app.settings.relay_poll_interval

    def renew() -> bool:
        before = relay.shards
        if relay.renew().shards - before:
            worker.wake("poll")
        return False

    def poll() -> bool | timedelta:
        done = relay.run_once()
        if done.slowed and not done.outage:
            return timedelta(seconds=done.slowed)
        return done.backlog and not done.outage

    def keep_house() -> bool:
        return housekeeping.run_once().more

    def close() -> None:
        if listener is not None:
            listener.close()
        relay.close()
        app.tracer.close()

    worker = Worker(
        name="relay",
        ticks=[
            Tick(name="renew", run=renew, every=lease / RENEWALS_PER_LEASE),
            Tick(
                name="poll",
                run=poll,
                every=poll_interval,
                linger=LINGER,
                until_next=partial(relay.until_due, within=poll_interval),
            ),
            Tick(name="housekeeping", run=keep_house, every=HOUSEKEEPING),
            *_half_message_ticks(app, stopping=lambda: worker.stopping),
        ],
        close=close,
        stop_timeout=app.settings.stop_timeout,
        watchdog=app.settings.watchdog,
    )
    listener = app.listener(lambda: worker.wake("poll"))
    if listener is not None:
        listener.start()
    return worker


def _half_message_ticks(app: ShieldTx, *, stopping: Callable[[], bool]) -> list[Tick]:
    """Check the half messages of each type by a tick of its own: none waits for a slow checker."""

    def check(check_back: CheckBack) -> bool:
        return check_back.run_once().more

    def park() -> bool:
        return parking.run_once().more

    parking = app.halves.parking()
    check_backs = app.halves.check_backs(stopping=stopping)
    checks = [
        Tick(name=f"checks of {each.event_type}", run=partial(check, each), every=CHECKS)
        for each in check_backs
    ]
    return [*checks, Tick(name="parking", run=park, every=PARKING)]


def consumer_worker(app: ShieldTx, group: str) -> Worker:
    """Build the process that consumes for one group; its passes wait for records themselves."""
    consumer = app.consumer_worker(group, stopping=lambda: worker.stopping)

    def consume() -> bool:
        consumer.run_once()
        return True

    def close() -> None:
        consumer.close()
        app.tracer.close()

    worker = Worker(
        name=f"consumer {group}",
        # The interval is the pause after a failed pass.
        ticks=[Tick(name="poll", run=consume, every=timedelta(seconds=1))],
        close=close,
        stop_timeout=app.settings.stop_timeout,
        watchdog=app.settings.watchdog,
    )
    return worker
