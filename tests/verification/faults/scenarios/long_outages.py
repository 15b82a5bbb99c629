"""F56: a long outage of Kafka or PostgreSQL, for workers with few descriptors and little memory."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.survivors import PATIENCE_S, expect_all_to_end_in_order
from tests.verification.faults.worker_pool import Footprint
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import own_kafka, own_postgres

OUTAGE_S = 60.0
"""Some sixty attempts to connect: the longest pause between two of them is a second."""
SETTLED_S = 15.0
"""From then on nothing may grow: each part of a worker has tried to connect, and failed."""
SPARE_DESCRIPTORS = 16
GROWTH_MB = 16
NONE_LEFT = os.strerror(errno.EMFILE)


def kafka_away(banks: Banks) -> None:
    """The broker is killed and restarts after a minute."""
    away(banks, banks.kafka.kill, banks.kafka.start)


def postgres_away(banks: Banks) -> None:
    """The database server is killed and restarts after a minute; clients cannot write either."""
    away(banks, banks.postgres.kill, banks.postgres.start)


def away(
    banks: Banks,
    stop: Callable[[], object],
    start: Callable[[], object],
    *,
    outage_s: float = OUTAGE_S,
    settled_s: float = SETTLED_S,
) -> None:
    """Stop a server for a while; expect that no worker grows after `settled_s` seconds."""
    banks.open()
    banks.write(60)
    banks.until(banks.drained, "all is at rest", PATIENCE_S)
    workers = [worker for side in banks.sides for worker in side.workers if worker.is_running]
    for worker in workers:
        _leave_few_descriptors(worker)
    stop()
    began = time.monotonic()
    clients = banks.begin_writing(60, pause=0.5)
    # The length of the outage is the subject of this fault.
    time.sleep(settled_s)
    before = {worker: Footprint.of(worker) for worker in workers if worker.is_running}
    time.sleep(max(0.0, began + outage_s - time.monotonic()))
    for worker in workers:
        banks.expect(worker.is_running, f"{worker.name} outlives the outage")
    for worker, footprint in before.items():
        if worker.is_running:
            _expect_no_growth(banks, worker, footprint)
    start()
    clients.finish(PATIENCE_S)
    banks.write(20)


def _leave_few_descriptors(worker: Worker) -> None:
    """Let a worker open only a few more files than now."""
    highest = max(int(entry.name) for entry in Path(f"/proc/{worker.pid}/fd").iterdir())
    most = highest + 1 + SPARE_DESCRIPTORS
    psutil.Process(worker.pid).rlimit(psutil.RLIMIT_NOFILE, (most, most))


def _expect_no_growth(banks: Banks, worker: Worker, before: Footprint) -> None:
    now = Footprint.of(worker)
    banks.expect(
        now.descriptors <= before.descriptors + SPARE_DESCRIPTORS // 2
        and now.megabytes <= before.megabytes + GROWTH_MB,
        f"{worker.name} stays as it was during an outage: {before}, then {now}",
    )


def _back_by_themselves(banks: Banks) -> None:
    for worker in (worker for side in banks.sides for worker in side.workers):
        banks.expect(not worker.has_logged(NONE_LEFT), f"{worker.name} has run out of descriptors")
    expect_all_to_end_in_order(banks)


FAULTS = (
    Fault(
        id="F56a",
        name="Kafka away for long, few descriptors",
        run=kafka_away,
        after=_back_by_themselves,
        setting=own_kafka,
    ),
    Fault(
        id="F56b",
        name="PostgreSQL away for long, few descriptors",
        run=postgres_away,
        after=_back_by_themselves,
        setting=own_postgres,
    ),
)
