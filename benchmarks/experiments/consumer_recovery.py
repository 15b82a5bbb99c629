"""The time from a `kill -9` of a consumer, restarted at once, until effects appear again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, SOURCE, KeyPosition, payload_of
from benchmarks.harness.child_process import BUILD
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.samples import BenchmarkFailed, measured
from benchmarks.harness.workers import killed, worker
from benchmarks.subjects.application import EFFECT, GROUP, STUCK_KEY, STUCK_WHILE
from shieldtx import Event, Settings, ShieldTx

FIGURES: Final = ("consumer_recovery_s",)
PATIENCE_S: Final = 120.0


def run(bench: Bench) -> ExperimentResult:
    """Kill the consumer while it handles an event, and write another one."""
    new, in_progress = [], []
    flag = BUILD / "bench-logs" / "stuck"
    environment = {STUCK_WHILE: str(flag)}
    for number in range(bench.sizes.rounds):
        bench.say(f"recovery of a consumer, round {number + 1} of {bench.sizes.rounds}")
        with bench.servers.place() as place, ExitStack() as running:
            shield = ShieldTx(Settings(source=SOURCE, database_url=place.url, relay_wakeup=True))
            running.callback(shield.close)
            shield.declare(EVENT_TYPE)
            running.enter_context(worker(place, "relay"))
            flag.touch()
            running.callback(flag.unlink, missing_ok=True)
            with killed(place, "consume", GROUP, environment=environment):
                _write(shield, "warm")
                _await_effect(shield, "warm")
                _write(shield, STUCK_KEY)
                _await_attempt(shield)
            flag.unlink()
            began = time.monotonic()
            _write(shield, "new")
            with worker(place, "consume", GROUP, environment=environment):
                new.append(_await_effect(shield, "new") - began)
                in_progress.append(_await_effect(shield, STUCK_KEY) - began)
    return ExperimentResult(
        figures={"consumer_recovery_s": measured(new)},
        absolutes={"consumer_recovery_in_progress_s": measured(in_progress)},
    )


def _write(shield: ShieldTx, key: str) -> None:
    with Session(shield.engine) as session, session.begin():
        payload = payload_of(KeyPosition(key=key, number=1))
        shield.outbox.add(session, Event(type=EVENT_TYPE, key=key, payload=payload))


def _await_effect(shield: ShieldTx, key: str) -> float:
    """Wait for the effect of a key's event, and return the time."""
    statement = select(func.count()).select_from(EFFECT).where(EFFECT.c.key == key)
    return _await(shield, statement, f"effect of {key!r}")


def _await_attempt(shield: ShieldTx) -> None:
    """Wait until the attempt of the stuck event has begun."""
    i = shield.tables.inbox
    attempts = select(func.count()).where(i.c.key == STUCK_KEY, i.c.lease_until > func.now())
    _await(shield, attempts, "attempt")


def _await(shield: ShieldTx, count: object, what: str) -> float:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with shield.engine.connect() as connection:
            if connection.scalar(count):  # type: ignore[call-overload]
                return time.monotonic()
        time.sleep(0.02)
    raise BenchmarkFailed(f"no {what} within {PATIENCE_S:.0f} s")
