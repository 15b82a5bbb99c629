"""Workers for cron and CI: they do what is due, and leave."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shieldtx.app.application import ShieldTx
from shieldtx.relay.result import RelayResult
from shieldtx.scheduling.exit_status import leave
from shieldtx.scheduling.gc_tuning import few_collections
from shieldtx.scheduling.signals import graceful_signals


@few_collections()
def relay_once(app: ShieldTx) -> RelayResult:
    """Check half messages, publish what is due of the shards that nobody else holds, free them."""
    with _stopped_by_signals() as stop:
        return _relay(app, stop)


def _relay(app: ShieldTx, stop: threading.Event) -> RelayResult:
    _check_once(app, stop)
    relay = app.build_relay()
    done = RelayResult()
    try:
        while not stop.is_set():
            step = relay.run_once()
            done = done.then(step)
            if not step.more:
                break
            if step.slowed:
                stop.wait(min(step.slowed, relay.until_renewal.total_seconds()))
    finally:
        relay.close()
        app.tracer.close()
    return done


@few_collections()
def consume_once(app: ShieldTx, group: str) -> dict[str, int]:
    """Handle what is on the topics and what is due in the inbox; return what was counted."""
    with _stopped_by_signals() as stop:
        return _consume(app, group, stop)


def _consume(app: ShieldTx, group: str, stop: threading.Event) -> dict[str, int]:
    consumer = app.build_consumer(group, stopping=stop.is_set)
    done: Counter[str] = Counter(dict.fromkeys(("records", "fresh", "duplicates", "parked"), 0))
    try:
        while not stop.is_set():
            step = consumer.run_once()
            done["records"] += step.records
            done["fresh"] += step.fresh
            done["duplicates"] += step.duplicates
            done["parked"] += step.parked
            for outcome, count in step.outcomes.items():
                done[outcome.name.lower()] += count
            if not step.more and consumer.has_caught_up():
                break
    finally:
        consumer.close()
        app.tracer.close()
    return dict(done)


def _check_once(app: ShieldTx, stop: threading.Event) -> None:
    """Ask about the half messages that are due for a check, and park what nobody can tell of."""
    for check_back in app.half_messages.check_backs(stopping=stop.is_set):
        while check_back.run_once().more and not stop.is_set():
            pass
    parking = app.half_messages.parking()
    while parking.run_once().more and not stop.is_set():
        pass


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield what a signal sets, to end after this pass; a second one ends the process at once."""
    stop = threading.Event()

    def end(number: int) -> None:
        if stop.is_set():
            # Not by the signal's default, which is none for the first process of a container.
            leave(128 + number)
        stop.set()

    with graceful_signals(end):
        yield stop
