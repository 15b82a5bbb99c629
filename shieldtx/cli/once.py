"""Workers for cron and CI: they do what is due, and leave."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from types import FrameType

from shieldtx.app.application import ShieldTx
from shieldtx.relay.result import RelayResult
from shieldtx.scheduling.gc_tuning import few_collections


@few_collections()
def relay_once(app: ShieldTx) -> RelayResult:
    """Check half messages, publish what is due of the shards that nobody else holds, free them."""
    stop = _stop_on_signals()
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
    stop = _stop_on_signals()
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
    expiry = app.half_messages.expiry()
    while expiry.run_once().more and not stop.is_set():
        pass


def _stop_on_signals() -> threading.Event:
    """Finish the pass that runs, then leave; a second signal ends the process on the spot."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  signal's signature
        if stop.is_set():
            # Not by the signal's default, which is none for the first process of a container.
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    return stop
