"""The worker processes of a service: the jobs of each, and how often they run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from shieldtx.app.application import ShieldTx
from shieldtx.consumer.consumer import LONGEST_PASS
from shieldtx.half_messages.check_back import CheckBack
from shieldtx.logs.databases import address_of
from shieldtx.relay.relay import RENEWALS_PER_LEASE
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.worker import Worker
from shieldtx.scheduling.worker_log import WorkerIdentity

log = logging.getLogger(__name__)

RETENTION = timedelta(minutes=1)
CHECKS = timedelta(seconds=1)
"""The interval between two polls for half messages that are due for a check."""
PARKING = timedelta(seconds=10)
TAKEOVER = timedelta(seconds=2)
"""The interval between two looks for relays that have died on this host."""
READY = timedelta(seconds=60)
"""How long after a pass without an error a relay counts as ready."""
LINGER = timedelta(milliseconds=100)
"""How long the relay stays awake for the next hint."""


def relay_process(app: ShieldTx) -> Worker:
    """Build the process that relays, renews leases, checks half messages, purges expired rows."""
    relay = app.build_relay()
    retention = app.build_retention()
    lease, poll_interval = app.settings.relay_lease, app.settings.relay_poll_interval

    def renew() -> bool:
        before = relay.shards
        if relay.renew().shards - before:
            worker.wake("poll")
        return False

    def wake(job: str) -> None:
        worker.wake(job)

    outage = ""

    def poll() -> bool | timedelta:
        nonlocal outage
        done = relay.run_once()
        outage = done.outage
        if done.slowed and not done.outage:
            return timedelta(seconds=done.slowed)
        return done.backlog and not done.outage

    def purge() -> bool:
        _warn_of_other_sources(app)
        return retention.run_once().more

    def close() -> None:
        if listener is not None:
            listener.close()
        relay.close()
        app.tracer.close()

    worker = Worker(
        name="relay",
        jobs=[
            PeriodicJob(
                name="renew",
                run=renew,
                every=lease / RENEWALS_PER_LEASE,
                vital=True,
                fresh_for=lease,
            ),
            PeriodicJob(
                name="poll",
                run=poll,
                every=poll_interval,
                linger=LINGER,
                until_next=partial(relay.until_due, within=poll_interval),
                vital=True,
                fresh_for=max(READY, 2 * poll_interval),
                obstacle=lambda: outage,
            ),
            PeriodicJob(name="retention", run=purge, every=RETENTION),
            *_takeover_jobs(app, renew),
            *_half_message_jobs(app, stopping=lambda: worker.stopping, wake=wake),
        ],
        close=close,
        stop_timeout=app.settings.stop_timeout,
        watchdog=app.settings.watchdog,
        failure_limit=app.settings.failure_limit,
        identity=_identity(app, relay=relay.name),
    )
    app.metrics.add(worker.probe)
    listener = app.connections.listener(lambda: worker.wake("poll"))
    if listener is not None:
        listener.start()
    return worker


def _takeover_jobs(app: ShieldTx, renew: Callable[[], bool]) -> list[PeriodicJob]:
    """Return the job that renews the leases at once when a relay of this host has died."""
    if not app.settings.early_takeover:
        return []
    dead = app.stores.dead_owners()

    def take_over() -> bool:
        return dead.has_relay() and renew()

    return [PeriodicJob(name="takeover", run=take_over, every=TAKEOVER)]


def _warn_of_other_sources(app: ShieldTx) -> None:
    for source, count in app.stores.limits().other_sources(app.settings.source).items():
        log.warning(
            "another source writes into this schema",
            extra={
                "action": "schema_shared",
                "source": app.settings.source,
                "other_source": source,
                "count": count,
                "advice": "Give each service a schema of its own: its events wait in shards that "
                "relays of the other one own",
            },
        )


def _half_message_jobs(
    app: ShieldTx, *, stopping: Callable[[], bool], wake: Callable[[str], None]
) -> list[PeriodicJob]:
    """Return jobs that check half messages, one for each type: no type waits for a slow checker.

    One poll of all types wakes only the types with a due check.
    """

    def poll() -> bool:
        for event_type in app.half_messages.checks_due():
            wake(_checks_of(event_type))
        return False

    def check(check_back: CheckBack) -> bool:
        return check_back.run_once().more

    def park() -> bool:
        return parking.run_once().more

    parking = app.half_messages.parking()
    check_backs = app.half_messages.check_backs(stopping=stopping)
    checks = [
        PeriodicJob(name=_checks_of(each.event_type), run=partial(check, each), every=None)
        for each in check_backs
    ]
    polls = [PeriodicJob(name="checks", run=poll, every=CHECKS)] if checks else []
    return [*polls, *checks, PeriodicJob(name="parking", run=park, every=PARKING)]


def _checks_of(event_type: str) -> str:
    return f"checks of {event_type}"


def consumer_process(app: ShieldTx, group: str) -> Worker:
    """Build the process that consumes for one group; its passes wait for records themselves."""
    is_first = True
    consumer = app.build_consumer(group, stopping=lambda: worker.stopping)

    def consume() -> bool:
        nonlocal is_first
        if is_first:
            end_dead_attempts(app, group)
            is_first = False
        consumer.run_once()
        return True

    def close() -> None:
        consumer.close()
        app.tracer.close()

    worker = Worker(
        name=f"consumer {group}",
        # The interval is the pause after a failed pass.
        jobs=[
            PeriodicJob(
                name="poll",
                run=consume,
                every=timedelta(seconds=1),
                vital=True,
                fresh_for=_longest_pass(app, group),
            )
        ],
        close=close,
        stop_timeout=app.settings.stop_timeout,
        watchdog=max(app.settings.watchdog, _longest_pass(app, group)),
        failure_limit=app.settings.failure_limit,
        identity=_identity(app, group=group),
    )
    app.metrics.add(worker.probe)
    return worker


def end_dead_attempts(app: ShieldTx, group: str) -> int:
    """End the first attempts of a group's workers that have died on this host.

    Returns their number: 0 where SHIELDTX_EARLY_TAKEOVER is off.
    """
    if not app.settings.early_takeover:
        return 0
    return app.stores.dead_owners().end_first_attempts(group)


def _identity(
    app: ShieldTx, *, relay: str | None = None, group: str | None = None
) -> WorkerIdentity:
    return WorkerIdentity(
        relay=relay,
        group=group,
        database=address_of(app.connections.engine.url),
        bootstrap=app.settings.kafka_bootstrap,
    )


def _longest_pass(app: ShieldTx, group: str) -> timedelta:
    """Return the maximum duration of a pass: a handler that uses its whole lease does not hang."""
    leases = [handler.lease for handler in app.groups[group].handlers()]
    return max(leases, default=timedelta(0)) + 2 * timedelta(seconds=LONGEST_PASS)
