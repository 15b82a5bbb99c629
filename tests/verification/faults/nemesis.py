"""`python -m tests.verification.faults.nemesis`: all faults at once, at random, for minutes."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
from rich.console import Console
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from tests.verification.faults import matrix
from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.matrix import Fault, Row
from tests.verification.faults.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from tests.verification.faults.report import line_of, table_of
from tests.verification.faults.worker_pool import WorkerPool
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import World, own_kafka, own_postgres

KEYS = 50
PAUSE_S = 0.25
"""Pause after each transfer of each client, so that the load stays below the machine's capacity."""
DRAIN_WITHIN_S = 240.0
LARGEST_MB, MOST_DESCRIPTORS, MOST_THREADS = 400, 100, 60
"""The bounds of each worker, all several times what a worker needs."""

BREAKING_POINTS = {
    "relay": ("claim", "publish", "settle"),
    "consume": ("receive", "offsets", "attempt", "effect", "handler", "give-up", "rollback"),
}


@dataclass(kw_only=True)
class Nemesis:
    """A random schedule of faults over two banks, until the time is over."""

    banks: Banks
    pool: WorkerPool
    to_database: FaultProxy
    seconds: float
    console: Console
    done: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Inject one fault after the other, while clients write."""
        self.pool.start()
        end = time.monotonic() + self.seconds
        clients = self._clients()
        reported_at = time.monotonic()
        while time.monotonic() < end:
            fault = self.banks.chance.choice(FAULTS)
            self.done[fault.__name__.strip("_")] += 1
            fault(self)
            self.pool.replace_dead()
            if not clients.is_running:
                clients = self._clients()
            self.rest(0.2, 2.0)
            if time.monotonic() > reported_at + 60:
                reported_at = time.monotonic()
                self._report(end - reported_at)
        clients.send(signal.SIGTERM)
        clients.join(30)
        clients.kill()
        self.pool.replace_all_dead()

    def _clients(self) -> Worker:
        return self.banks.begin_writing(
            transfers=10**9,
            url=self.pool.environment["upstream"]["SHIELDTX_DATABASE_URL"],
            pause=PAUSE_S,
        )

    def rest(self, least: float, most: float) -> None:
        """Wait for a random time between two bounds, in seconds."""
        time.sleep(self.banks.chance.uniform(least, most))
        self.pool.measure()

    def _report(self, left: float) -> None:
        with suppress(DBAPIError):
            self.console.print(
                f"  {left / 60:4.1f} min left: {self.banks.upstream.outbox()} upstream, "
                f"{self.banks.downstream.inbox()} downstream, {self.done.total()} faults"
            )


def kill_worker(n: Nemesis) -> None:
    """F9, F23."""
    n.pool.kill(n.pool.any_running(), for_seconds=n.banks.chance.uniform(0, 4))


def break_worker(n: Nemesis) -> None:
    """F9, F23, at a failpoint."""
    slot, chance = n.pool.any_running(), n.banks.chance
    step = chance.choice(BREAKING_POINTS[slot.words[0]])
    when = "before" if step == "handler" else chance.choice(["before", "after"])
    action = chance.choice(["exit", "raise"])
    n.pool.replace_by_broken(slot, Failpoint(step=step, when=when, action=action))


def freeze_worker(n: Nemesis) -> None:
    """F10."""
    with n.pool.any_running().worker.stopped():
        n.rest(0.5, 7)


def stop_database(n: Nemesis) -> None:
    """F4."""
    n.banks.postgres.kill()
    n.banks.postgres.start()


def end_backends(n: Nemesis) -> None:
    """F5."""
    with suppress(DBAPIError):
        n.banks.upstream.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() "
            "AND random() < 0.3"
        )


def stop_broker(n: Nemesis) -> None:
    """F17."""
    n.banks.kafka.kill()
    n.rest(0.5, 5)
    n.banks.kafka.start()


def freeze_broker(n: Nemesis) -> None:
    """F18."""
    broker = psutil.Process(n.banks.kafka.pid)
    broker.suspend()
    try:
        n.rest(1, 8)
    finally:
        broker.resume()


def break_network(n: Nemesis) -> None:
    """F19, F20, to the broker or to the database."""
    chance = n.banks.chance
    proxy = chance.choice([n.banks.proxy, n.to_database])
    fault = chance.choice(
        [
            proxy.cut,
            proxy.black_hole,
            lambda: proxy.black_hole(to={TO_SERVER}),
            lambda: proxy.black_hole(to={TO_CLIENT}),
            lambda: proxy.latency(0.2, jitter=0.3),
            lambda: proxy.slices(1),
            lambda: proxy.reset_after(chance.randint(1, 2000)),
        ]
    )
    with fault():
        n.rest(0.5, 6)


FAULTS: tuple[Callable[[Nemesis], None], ...] = (
    # Some faults more often: they are quick, and find most.
    kill_worker,
    kill_worker,
    break_worker,
    break_worker,
    break_worker,
    freeze_worker,
    freeze_worker,
    stop_database,
    end_backends,
    stop_broker,
    freeze_broker,
    break_network,
    break_network,
    break_network,
)


class Everything:
    """The fault that combines all of them."""

    def __init__(self, minutes: float, console: Console) -> None:
        self._minutes = minutes
        self._console = console

    def fault(self) -> Fault:
        """Make the row of the matrix."""
        return Fault(
            id="nemesis",
            name=f"everything at once, for {self._minutes:g} min",
            setting=self._open,
            run=self._run,
            after=self._look_back,
        )

    def _open(self, world: World, own: ExitStack) -> Mapping[str, Any]:
        given = {"accounts": KEYS, **own_postgres(world, own), **own_kafka(world, own)}
        self._to_database = own.enter_context(FaultProxy(given["postgres"].port))
        return given

    def _run(self, banks: Banks) -> None:
        through = {
            side.name: {
                "SHIELDTX_DATABASE_URL": make_url(side.url)
                .set(port=self._to_database.port)
                .render_as_string(hide_password=False)
            }
            for side in banks.sides
        }
        self._pool = WorkerPool(banks=banks, environment=through)
        Nemesis(
            banks=banks,
            pool=self._pool,
            to_database=self._to_database,
            seconds=self._minutes * 60,
            console=self._console,
        ).run()

    def _look_back(self, banks: Banks) -> None:
        expect_no_growth(banks, self._pool)


def expect_no_growth(banks: Banks, pool: WorkerPool) -> None:
    """Expect that no worker died by itself, and that none grew."""
    pool.measure()
    largest = pool.footprint
    for death in pool.died:
        banks.expect(condition=False, description=f"the worker died by itself: {death}")
    banks.expect(largest.megabytes < LARGEST_MB, f"memory stays flat: {largest}")
    banks.expect(largest.descriptors < MOST_DESCRIPTORS, f"descriptors stay flat: {largest}")
    banks.expect(largest.threads < MOST_THREADS, f"threads stay flat: {largest}")


def main() -> int:
    """Run the nemesis of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.faults.nemesis", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(f"seed {asked.seed}")
    with World() as world:
        fault = Everything(asked.minutes, console).fault()
        row: Row = matrix.run(fault, world, seed=asked.seed, drain_within=DRAIN_WITHIN_S)
    console.print(line_of(row))
    console.print(table_of([row]))
    print(f"{int(row.passed)} passed, {int(not row.passed)} failed")
    return 0 if row.passed else 1


if __name__ == "__main__":
    sys.exit(main())
