"""The life of a worker process: APScheduler ticks its passes, signals end it gracefully."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from types import FrameType
from typing import NoReturn

from apscheduler.schedulers.background import BackgroundScheduler

log = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_NOT_GRACEFUL = 1
EXIT_HUNG = 70
"""EX_SOFTWARE of sysexits.h: the watchdog ended the process."""

_OBJECTS_BETWEEN_COLLECTIONS = 200_000

_NEAR = timedelta(milliseconds=100)
_SOONEST = timedelta(milliseconds=5)
"""A pass that finds nothing, and is asked for again, shall not take a processor to itself."""

_CLOCK_LOOK_S = 1.0
_CLOCK_STEP_S = 0.1
"""Below this a clock is being slewed, not set, and a tick hardly later for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A pass that runs every so often.

    It returns True when it should run again at once, or after what time it should, unless woken.
    """

    name: str
    run: Callable[[], bool | timedelta]
    every: timedelta
    linger: timedelta = timedelta(0)
    """How long after its last pass it can be woken without the scheduler, which takes a while."""
    until_next: Callable[[], timedelta | None] = lambda: None
    """Asked when there is nothing more to do: when to run before its next time; None: not."""


class Worker:
    """Runs ticks until SIGTERM or SIGINT; a second signal ends the process on the spot.

    No tick runs twice at a time. An error in a tick is logged and the tick runs again at its next
    time: whatever was in its hands is safe in the tables.
    """

    def __init__(
        self,
        *,
        name: str,
        ticks: Sequence[Tick],
        close: Callable[[], None],
        stop_timeout: timedelta,
        watchdog: timedelta,
    ) -> None:
        self._name = name
        self._ticks = {tick.name: tick for tick in ticks}
        self._close = close
        self._stop_timeout = stop_timeout
        self._watchdog = watchdog
        self._stopping = False
        self._exit_status = EXIT_STOPPED
        # Of all that a thread can wait for, this alone may be touched by a signal's handler.
        self._ending: SimpleQueue[None] = SimpleQueue()
        self._woken = {name: threading.Event() for name in self._ticks}
        self._running = {name: threading.Lock() for name in self._ticks}
        self._pass_began: dict[str, float] = {}
        self._scheduler = BackgroundScheduler(
            # A late tick is better than none; several late ones are one.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            executors={"default": {"type": "threadpool", "max_workers": len(ticks) + 1}},
            timezone=UTC,
        )

    @property
    def stopping(self) -> bool:
        """Whether the end of the process has been asked for."""
        return self._stopping

    def wake(self, tick: str) -> None:
        """Run a tick at once; a hint in its last moment may be lost until its next time."""
        self._woken[tick].set()
        if not self._running[tick].locked() and self._scheduler.running:
            self._scheduler.modify_job(tick, next_run_time=datetime.now(UTC))

    def stop(self) -> None:
        """Ask for a graceful end."""
        self._stopping = True
        self._ending.put(None)

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Run until a signal or `stop`; return the exit status, 0 for a graceful end.

        `ready` is called once, when the ticks run and signals lead to a graceful end.
        """
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            with few_collections():
                self._start()
                ready()
                self._await_end()
                return self._end()
        finally:
            for number, handler in before.items():
                if handler is not None:  # else it is not Python's
                    signal.signal(number, handler)

    def _start(self) -> None:
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        now = datetime.now(UTC)
        for tick in self._ticks.values():
            self._scheduler.add_job(
                self._tick,
                "interval",
                args=[tick],
                id=tick.name,
                seconds=tick.every.total_seconds(),
                next_run_time=now,
            )
        self._scheduler.add_job(self._watch, "interval", seconds=1, id="watchdog")
        self._scheduler.start()
        log.info("%s is running (pid %d)", self._name, os.getpid())

    def _await_end(self) -> None:
        """Wait until the end is asked for, and run all ticks at once when the clock is set back.

        The scheduler plans by the wall clock, so that each would wait for the clock to catch up.
        """
        lead = _wall_clock_lead()
        while True:
            try:
                return self._ending.get(timeout=_CLOCK_LOOK_S)
            except Empty:
                before, lead = lead, _wall_clock_lead()
            if lead < before - _CLOCK_STEP_S:
                log.warning("%s: the clock was set back by %.1f s", self._name, before - lead)
                for job in self._scheduler.get_jobs():
                    job.modify(next_run_time=datetime.now(UTC))

    def _tick(self, tick: Tick) -> None:
        """Run the passes of a tick until there is nothing more to do."""
        running = self._running[tick.name]
        # Held already: by the end of the worker, since the scheduler starts no second one.
        if not running.acquire(blocking=False):
            return
        try:
            self._run_passes(tick)
        finally:
            running.release()

    def _run_passes(self, tick: Tick) -> None:
        woken = self._woken[tick.name]
        try:
            while not self.stopping:
                woken.clear()
                with self._watched(tick):
                    more = tick.run()
                if isinstance(more, timedelta):
                    woken.wait(more.total_seconds())
                    continue
                if more or woken.wait(tick.linger.total_seconds()):
                    continue
                with self._watched(tick):
                    pause = tick.until_next()
                if not self._goes_on(tick, pause):
                    return
        except Exception:
            log.exception("%s: %s failed, it runs again later", self._name, tick.name)

    @contextmanager
    def _watched(self, tick: Tick) -> Iterator[None]:
        self._pass_began[tick.name] = time.monotonic()
        try:
            yield
        finally:
            self._pass_began.pop(tick.name, None)

    def _goes_on(self, tick: Tick, pause: timedelta | None) -> bool:
        """Return whether a tick runs on, having waited for its next pass if that is near."""
        woken = self._woken[tick.name]
        if pause is not None and pause <= _NEAR:
            # The scheduler would not start a second run beside this one, which is about to end.
            woken.wait(max(pause, _SOONEST).total_seconds())
            return True
        if pause is not None and pause < tick.every:
            self._run_early(tick, datetime.now(UTC) + pause)
        # It may have been woken while it asked.
        return woken.is_set()

    def _run_early(self, tick: Tick, at: datetime) -> None:
        job = self._scheduler.get_job(tick.name)
        if job is not None and job.next_run_time is not None and at < job.next_run_time:
            job.modify(next_run_time=at)

    def _watch(self) -> None:
        """End a process in which a pass hangs: its leases run out, and others go on."""
        now = time.monotonic()
        for name, began in list(self._pass_began.items()):
            if now - began > self._watchdog.total_seconds():
                log.critical(
                    "%s: %s has hung for %.0f s, the process ends so that others can take over",
                    self._name,
                    name,
                    now - began,
                )
                _leave(EXIT_HUNG)

    def _end(self) -> int:
        """Let the passes end, then close, all within the stop's deadline."""
        log.info("%s is stopping", self._name)
        deadline = time.monotonic() + self._stop_timeout.total_seconds()
        self._scheduler.pause()
        for woken in self._woken.values():
            woken.set()
        for name, running in self._running.items():
            if not running.acquire(timeout=max(0.0, deadline - time.monotonic())):
                log.error("%s: %s did not end in time; its leases will run out", self._name, name)
                _leave(EXIT_NOT_GRACEFUL)
        self._scheduler.shutdown(wait=False)
        closing = threading.Thread(target=self._let_go, daemon=True)
        closing.start()
        closing.join(timeout=max(0.0, deadline - time.monotonic()))
        if closing.is_alive():
            log.error("%s: closing did not end in time; its leases will run out", self._name)
            _leave(EXIT_NOT_GRACEFUL)
        return self._exit_status

    def _let_go(self) -> None:
        try:
            self._close()
        except Exception:
            log.exception("%s could not let go of everything; its leases will run out", self._name)
            self._exit_status = EXIT_NOT_GRACEFUL
        else:
            log.info("%s has stopped", self._name)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  signal's signature
        if self.stopping:
            _leave(128 + number)
        self.stop()


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and at nothing that was there before.

    A batch is some ten thousands of objects, none of them in a circle, which come and go together:
    to look for circles among them, and among all that was imported, takes a good part of a relay's
    time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _wall_clock_lead() -> float:
    """Return by how many seconds the wall clock is ahead of the one that nobody can set."""
    return datetime.now(UTC).timestamp() - time.monotonic()


def _leave(status: int) -> NoReturn:
    """End the process at once: threads that hang would keep an orderly exit waiting for ever.

    Without flushing logs, which would wait for a thread that hangs while it writes one.
    """
    os._exit(status)
