"""Life cycle of a worker process: APScheduler runs its jobs, signals end it gracefully."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import NoReturn

from shieldtx._extras import import_extra
from shieldtx.scheduling.exit_status import (
    EXIT_FAILING,
    EXIT_HUNG,
    EXIT_NOT_GRACEFUL,
    EXIT_STOPPED,
    leave,
    log_briefly,
    status_of,
)
from shieldtx.scheduling.gc_tuning import few_collections, free_failed_pass
from shieldtx.scheduling.health import NEVER, Health
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.process_state import main_thread_has_returned, wall_clock_lead
from shieldtx.scheduling.signals import graceful_signals
from shieldtx.scheduling.worker_log import WorkerIdentity, WorkerLog
from shieldtx.scheduling.worker_probe import WorkerProbe

_UNPLANNED = timedelta(days=365)
"""Interval between two runs of a job that only runs when woken."""


_NEAR = timedelta(milliseconds=100)
_SOONEST = timedelta(milliseconds=5)
"""Minimum delay between passes that find nothing, so that they do not occupy a processor."""

_CLOCK_LOOK_S = 1.0
_HOST_LOOK_S = 0.1
"""How often a worker in a thread of its host checks whether the host's main thread has returned."""
_CLOCK_STEP_S = 0.1
"""Smaller steps come from slewing a clock, not from setting it, and hardly delay a job."""


class Worker:
    """Runs jobs until SIGTERM, SIGINT or SIGHUP; a second signal ends the process at once.

    A job never runs twice concurrently. An error in a job is logged and the job runs again at its
    next time: its work is safe in the tables. An error that is not an `Exception` (SystemExit,
    KeyboardInterrupt, a panic of an extension) ends the process gracefully, with a status above 0.
    So does a vital job without a successful pass for `failure_limit`. An unreachable broker does
    not count, since a restart does not help.
    """

    def __init__(
        self,
        *,
        name: str,
        jobs: Sequence[PeriodicJob],
        close: Callable[[], None],
        stop_timeout: timedelta,
        watchdog: timedelta,
        failure_limit: timedelta = NEVER,
        identity: WorkerIdentity = WorkerIdentity(),  # noqa: B008  immutable
    ) -> None:
        self._log = WorkerLog(name, identity)
        self._jobs = {job.name: job for job in jobs}
        self._close = close
        self._stop_timeout = stop_timeout
        self._health = Health(watchdog=watchdog, failure_limit=failure_limit)
        self._stopping = False
        self._stop_reason = ""
        self._exit_status = EXIT_STOPPED
        # The only object that a thread can wait for and a signal handler may use safely.
        self._ending: SimpleQueue[None] = SimpleQueue()
        self._woken = {name: threading.Event() for name in self._jobs}
        self._running = {name: threading.Lock() for name in self._jobs}
        self.probe = WorkerProbe(name, jobs, self._health)
        with import_extra("a worker process"):
            from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        self._scheduler = BackgroundScheduler(
            # A late run is better than a missing one; several late runs become one.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            executors={"default": {"type": "threadpool", "max_workers": len(jobs) + 1}},
            timezone=UTC,
        )

    @property
    def stopping(self) -> bool:
        """Whether a stop has been requested."""
        return self._stopping

    def wake(self, job: str) -> None:
        """Run a job at once; near the end of a pass, the call may take effect at the next time."""
        self._woken[job].set()
        if not self._running[job].locked() and self._scheduler.running:
            self._scheduler.modify_job(job, next_run_time=datetime.now(UTC))

    def stop(self, reason: str = "stop() was called") -> None:
        """Request a graceful stop; the log names the reason of the first request."""
        self._stop_reason = self._stop_reason or reason
        self._stopping = True
        self._ending.put(None)

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Run until a signal or `stop`; return the exit status, 0 for a graceful stop.

        `ready` is called once, when the jobs run and signals lead to a graceful stop. In a thread
        other than the main one, the host handles signals and calls `stop`; the worker also stops
        when the main thread returns. A pass that hangs ends the whole process: its thread cannot be
        ended otherwise.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._live(ready)
        with graceful_signals(self._on_signal), few_collections():
            return self._live(ready)

    def _live(self, ready: Callable[[], None]) -> int:
        # Before a job is planned: the clock may be set during the first passes or in `ready`.
        lead = wall_clock_lead()
        try:
            self._start()
            ready()
        except BaseException as error:
            # Release the leases of the first passes.
            self._stop_reason = self._stop_reason or f"start failed: {type(error).__name__}"
            self._end()
            raise
        self._await_end(lead)
        return self._end()

    def _start(self) -> None:
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        now = datetime.now(UTC)
        for job in self._jobs.values():
            self._scheduler.add_job(
                self._run_job,
                "interval",
                args=[job],
                id=job.name,
                seconds=(job.every or _UNPLANNED).total_seconds(),
                next_run_time=now if job.every else None,
            )
        self._scheduler.add_job(self._watch, "interval", seconds=1, id="watchdog")
        self._scheduler.start()
        self._log.started()

    def _await_end(self, lead: float) -> None:
        """Wait for a stop request; run all jobs at once when the clock is set back.

        The scheduler plans by the wall clock, so each job would wait for it to catch up. `lead` is
        the value of `wall_clock_lead` before the first job was planned. In a host's thread, the end
        of the main thread stops the worker too: the interpreter waits for both.
        """
        in_host = threading.current_thread() is not threading.main_thread()
        while True:
            before, lead = lead, wall_clock_lead()
            if lead < before - _CLOCK_STEP_S:
                self._log.clock_set_back(before - lead)
                for job in self._scheduler.get_jobs():
                    job.modify(next_run_time=datetime.now(UTC))
            with suppress(Empty):
                self._ending.get(timeout=_HOST_LOOK_S if in_host else _CLOCK_LOOK_S)
                return
            if in_host and main_thread_has_returned():
                self._log.main_thread_returned()
                self._stop_reason = "main thread has returned"
                return

    def _run_job(self, job: PeriodicJob) -> None:
        """Run the passes of a job until there is nothing more to do."""
        running = self._running[job.name]
        # Only a stopping worker holds the lock: the scheduler never starts a second run.
        if not running.acquire(blocking=False):
            return
        try:
            if not self._run_passes(job):
                free_failed_pass()
        finally:
            running.release()

    def _run_passes(self, job: PeriodicJob) -> bool:
        """Return whether no error was caught: a failed pass is logged, and runs again later."""
        woken = self._woken[job.name]
        try:
            while not self.stopping:
                woken.clear()
                with self._health.watching(job.name):
                    more = job.run()
                self._health.succeeded(job.name)
                if isinstance(more, timedelta):
                    self._log.job_succeeded(job.name)
                    with self._health.waiting(job.name):
                        woken.wait(more.total_seconds())
                    continue
                if more or woken.wait(job.linger.total_seconds()):
                    self._log.job_succeeded(job.name)
                    continue
                with self._health.watching(job.name):
                    pause = job.until_next()
                self._log.job_succeeded(job.name)
                if not self._goes_on(job, pause):
                    break
        except Exception as error:  # noqa: BLE001  it is logged, and the job runs again
            self._log.job_failed(job.name, error)
            if job.vital:
                self._health.failed(job.name, error)
            return False
        except BaseException as error:  # noqa: BLE001  it is logged, and ends the process
            self._exit_status = status_of(error)
            self._log.job_ended_process(job.name, error, self._exit_status)
            self.stop(f"{type(error).__name__} in job {job.name}")
        return True

    def _goes_on(self, job: PeriodicJob, pause: timedelta | None) -> bool:
        """Return whether the job runs again now, after waiting for a next pass that is near."""
        woken = self._woken[job.name]
        if pause is not None and pause <= _NEAR:
            # The scheduler would not start a second run next to this one, which is about to end.
            woken.wait(max(pause, _SOONEST).total_seconds())
            return True
        if pause is not None and pause < (job.every or _UNPLANNED):
            self._run_early(job, datetime.now(UTC) + pause)
        # The job may have been woken meanwhile.
        return woken.is_set()

    def _run_early(self, job: PeriodicJob, at: datetime) -> None:
        scheduled = self._scheduler.get_job(job.name)
        if (
            scheduled is not None
            and scheduled.next_run_time is not None
            and at < scheduled.next_run_time
        ):
            scheduled.modify(next_run_time=at)

    def _watch(self) -> None:
        """End a process in which a pass hangs or every pass fails, so that others take over."""
        if (hung := self._health.hung()) is not None:
            self._log.job_hung(hung)
            leave(EXIT_HUNG)
        if not self.stopping and (failing := self._health.failing()) is not None:
            self._log.job_failing(failing)
            self._exit_status = EXIT_FAILING
            self.stop(f"job {failing.job} keeps failing")

    def _end(self) -> int:
        """Wait for the passes, then close, all within the stop's deadline."""
        self._log.stopping(self._stop_reason)
        deadline = time.monotonic() + self._stop_timeout.total_seconds()
        self._stopping = True
        if self._scheduler.running:
            self._scheduler.pause()
        for woken in self._woken.values():
            woken.set()
        for name, running in self._running.items():
            if not running.acquire(timeout=max(0.0, deadline - time.monotonic())):
                self._log.job_not_ended(name)
                leave(EXIT_NOT_GRACEFUL)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        closing = threading.Thread(target=self._let_go, daemon=True)
        closing.start()
        closing.join(timeout=max(0.0, deadline - time.monotonic()))
        if closing.is_alive():
            self._log.not_closed()
            leave(EXIT_NOT_GRACEFUL)
        return self._exit_status

    def _let_go(self) -> None:
        try:
            self._close()
        except BaseException as error:  # noqa: BLE001  it is logged, and sets the exit status
            self._log.close_failed(error)
            self._exit_status = self._exit_status or EXIT_NOT_GRACEFUL
        else:
            self._log.stopped()

    def _on_signal(self, number: int) -> None:
        if self.stopping:
            end_at_once(self._log, number)
        self.stop(signal.Signals(number).name)


def end_at_once(log: WorkerLog, number: int) -> NoReturn:
    """End the process at its second signal, from the signal's handler.

    The signal's default action would not do: there is none for process 1 of a container.
    """
    status, name = 128 + number, signal.Signals(number).name
    log_briefly(partial(log.ended_at_once, f"{name} during the stop", status))
    leave(status)
