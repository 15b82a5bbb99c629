"""The worker pool of a long run: many workers, some of which are down at any time."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker

RELAYS = 2
"""Relays of each bank."""
CONSUMERS = 2
"""Consumers of each bank."""


@dataclass(kw_only=True)
class Slot:
    """A slot of the pool and the process that fills it."""

    side: Side
    words: tuple[str, ...]
    worker: Worker
    back_at: float = 0.0
    """When a dead process is replaced, by the monotonic clock."""

    def __str__(self) -> str:
        return f"{self.words[0]} of {self.side.name}"


@dataclass(kw_only=True)
class Footprint:
    """The largest memory, descriptors and threads of a worker so far: they must stay flat."""

    megabytes: int = 0
    descriptors: int = 0
    threads: int = 0

    @classmethod
    def of(cls, worker: Worker) -> Footprint:
        """Measure a running worker once."""
        footprint = cls()
        footprint.take(worker)
        return footprint

    def take(self, worker: Worker) -> None:
        """Measure a running worker."""
        process = psutil.Process(worker.pid)
        with process.oneshot():
            self.megabytes = max(self.megabytes, process.memory_info().rss // 2**20)
            self.descriptors = max(self.descriptors, process.num_fds())
            self.threads = max(self.threads, process.num_threads())


@dataclass(kw_only=True)
class WorkerPool:
    """Relays and consumers of both banks."""

    banks: Banks
    environment: Mapping[str, Mapping[str, str]]
    """Additional variables of the workers of each side."""
    slots: list[Slot] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    """The workers that ended without being killed."""
    footprint: Footprint = field(default_factory=Footprint)

    def start(self) -> None:
        """Start a worker in each slot."""
        for side in self.banks.sides:
            for words in [("relay",)] * RELAYS + [("consume", side.group)] * CONSUMERS:
                worker = side.launch(*words, **self.environment[side.name])
                self.slots.append(Slot(side=side, words=words, worker=worker))
        for slot in self.slots:
            slot.worker.await_ready()

    def any_running(self) -> Slot:
        """Return a random slot whose worker runs."""
        running = [slot for slot in self.slots if slot.worker.is_running]
        return self.banks.chance.choice(running or self.slots)

    def kill(self, slot: Slot, *, for_seconds: float) -> None:
        """Kill a process; it is replaced after a while."""
        slot.worker.kill()
        slot.back_at = time.monotonic() + for_seconds

    def replace_by_broken(self, slot: Slot, point: Failpoint) -> None:
        """Kill a process, and replace it by a process with a failpoint."""
        slot.worker.kill()
        slot.side.mark.unlink(missing_ok=True)
        self._fill(slot, **slot.side.broken_at(point))

    def replace_dead(self) -> None:
        """Replace the dead workers whose pause is over, and note those that died by themselves."""
        for slot in self.slots:
            if slot.worker.is_running:
                continue
            if slot.back_at == 0.0:
                # The worker ended at a failpoint, or could not start without its database; or it
                # died.
                if slot.worker.exit_status != -signal.SIGKILL and slot.worker.is_ready():
                    self.died.append(
                        f"{slot}: exit status {slot.worker.exit_status}\n{slot.worker.tail(8)}"
                    )
                slot.back_at = time.monotonic() + 1
            elif time.monotonic() >= slot.back_at:
                self._fill(slot)

    def measure(self) -> None:
        """Measure every running worker."""
        for slot in self.slots:
            if slot.worker.is_running:
                self.footprint.take(slot.worker)

    def replace_all_dead(self) -> None:
        """Replace every dead worker."""
        for slot in self.slots:
            if not slot.worker.is_running:
                self._fill(slot)

    def _fill(self, slot: Slot, **more: str) -> None:
        slot.worker = slot.side.launch(*slot.words, **{**self.environment[slot.side.name], **more})
        slot.back_at = 0.0
