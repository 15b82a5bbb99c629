"""The time after a `kill -9` of a relay until events of its shards are readable in Kafka again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, SOURCE, KeyPosition, payload_of
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.kafka_arrivals import Arrivals
from benchmarks.harness.samples import measured
from benchmarks.harness.workers import killed, worker
from shieldtx import Event, Settings, ShieldTx

FIGURES: Final = ("relay_recovery_s",)
KEYS: Final = 400
"""So many keys have events in every shard."""


def run(bench: Bench) -> ExperimentResult:
    """Kill one of two relays of this host, and then the only one, which is started again."""
    taken_over, restarted = [], []
    for number in range(bench.sizes.rounds):
        bench.say(f"recovery of relays, round {number + 1} of {bench.sizes.rounds}")
        with bench.servers.place() as place, ExitStack() as running:
            shield = ShieldTx(Settings(source=SOURCE, database_url=place.url, relay_wakeup=True))
            running.callback(shield.close)
            shield.declare(EVENT_TYPE)
            arrivals = running.enter_context(Arrivals(place))
            with worker(place, "relay", log="relay-1"):
                with killed(place, "relay", log="relay-2"):
                    _written(shield, arrivals, 1)
                    _await_owners(shield, 2)
                taken_over.append(_written(shield, arrivals, 2))
            with killed(place, "relay"):
                _written(shield, arrivals, 3)
            began = time.time()
            with worker(place, "relay"):
                restarted.append(_written(shield, arrivals, 4, began=began))
    return ExperimentResult(
        figures={"relay_recovery_s": measured(taken_over)},
        absolutes={"relay_restart_s": measured(restarted)},
    )


def _written(shield: ShieldTx, arrivals: Arrivals, n: int, *, began: float | None = None) -> float:
    """Write the n-th event of each key; return the seconds until the last record is readable."""
    began = time.time() if began is None else began
    with Session(shield.engine) as session, session.begin():
        for key in range(KEYS):
            position = KeyPosition(key=f"key-{key}", number=n)
            event = Event(type=EVENT_TYPE, key=position.key, payload=payload_of(position))
            shield.outbox.add(session, event)
    return max(arrivals.read(KEYS).values()) - began


def _await_owners(shield: ShieldTx, count: int) -> None:
    """Wait until so many relays own shards."""
    t = shield.tables.shard
    statement = t.select().with_only_columns(t.c.owner).distinct().where(t.c.owner.is_not(None))
    while True:
        with shield.engine.connect() as connection:
            if len(connection.execute(statement).all()) == count:
                return
        time.sleep(0.1)
