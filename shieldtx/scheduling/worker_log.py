"""What a worker logs about itself and its jobs."""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shieldtx.domain.broker_outage import BrokerOutage
from shieldtx.domain.log_throttle import FailureThrottle
from shieldtx.domain.reasons import loggable, reason_of
from shieldtx.errors import BrokerUnavailable
from shieldtx.scheduling.exit_status import EXIT_FAILING, EXIT_HUNG, EXIT_NOT_GRACEFUL
from shieldtx.scheduling.health import Symptom

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerIdentity:
    """What a worker works for, and what it connects to, for its log."""

    relay: str | None = None
    """The name of a relay in the tables."""
    group: str | None = None
    database: str | None = None
    """Address and name, without user and password."""
    bootstrap: str | None = None


class WorkerLog:
    """Logs under the name of one worker."""

    def __init__(
        self,
        worker: str,
        identity: WorkerIdentity,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._identity = identity
        self._failures = FailureThrottle(clock=clock)
        outage = partial(BrokerOutage, relay=identity.relay, group=identity.group, clock=clock)
        self._outages: defaultdict[str, BrokerOutage] = defaultdict(outage)
        self._last_errors: dict[str, str] = {}
        """The reason of each job's last failure."""

    def started(self) -> None:
        """Log that the jobs are scheduled."""
        log.info(
            "worker started",
            extra={
                "action": "worker_started",
                "worker": self._worker,
                "pid": os.getpid(),
                "relay": self._identity.relay,
                "group": self._identity.group,
                "database": self._identity.database,
                "bootstrap": self._identity.bootstrap,
            },
        )

    def clock_set_back(self, step_s: float) -> None:
        """Log by how many seconds the clock was set back."""
        log.warning(
            "clock was set back",
            extra={
                "action": "clock_set_back",
                "worker": self._worker,
                "step_s": round(step_s, 1),
            },
        )

    def main_thread_returned(self) -> None:
        """Log why a worker in a thread of its host stops."""
        log.info(
            "main thread has returned, worker stops",
            extra={"action": "main_thread_returned", "worker": self._worker},
        )

    def job_failed(self, job: str, error: Exception) -> None:
        """Log the error of a pass: the first of its class, then one a minute."""
        self._last_errors[job] = reason_of(error)
        if isinstance(error, BrokerUnavailable):
            self._outages[job].goes_on(str(error))
            return
        failures = self._failures.failed(job, type(error).__qualname__)
        if failures is None:
            return
        log.error(
            "job failed, runs again later",
            exc_info=loggable(error),
            extra={
                "action": "job_failed",
                "worker": self._worker,
                "job": job,
                "count": failures.count,
                "duration_s": round(failures.seconds),
            },
        )

    def job_succeeded(self, job: str) -> None:
        """Log that a pass has succeeded, if the passes before it have failed."""
        if self._last_errors.pop(job, None) is None:
            return
        self._outages[job].ended()
        failures = self._failures.ended(job)
        if failures is None:
            return
        log.info(
            "job works again",
            extra={
                "action": "job_recovered",
                "worker": self._worker,
                "job": job,
                "count": failures.count,
                "duration_s": round(failures.seconds),
            },
        )

    def job_ended_process(self, job: str, error: BaseException, exit_status: int) -> None:
        """Log what ends the process although it is not an error."""
        log.critical(
            "job ends the process",
            exc_info=loggable(error),
            extra={
                "action": "job_ended_process",
                "worker": self._worker,
                "job": job,
                "error_type": type(error).__name__,
                "exit_status": exit_status,
            },
        )

    def job_hung(self, hung: Symptom) -> None:
        """Log the pass for which the watchdog ends the process."""
        log.critical(
            "job hangs, process ends",
            extra={
                "action": "job_hung",
                "worker": self._worker,
                "job": hung.job,
                "duration_s": round(hung.seconds),
                "exit_status": EXIT_HUNG,
            },
        )

    def job_failing(self, failing: Symptom) -> None:
        """Log the job of which no pass has succeeded for too long."""
        log.critical(
            "job keeps failing, process ends",
            extra={
                "action": "job_failing",
                "worker": self._worker,
                "job": failing.job,
                "duration_s": round(failing.seconds),
                "exit_status": EXIT_FAILING,
                "error": self._last_errors.get(failing.job),
                "advice": "Repair what the error names (password, permissions, address of the "
                "primary), and start the process again if no supervisor does. The limit is "
                "SHIELDTX_FAILURE_LIMIT",
            },
        )

    def stopping(self, reason: str) -> None:
        """Log that the passes are about to end."""
        log.info(
            "worker is stopping",
            extra={"action": "worker_stopping", "worker": self._worker, "reason": reason},
        )

    def ended_at_once(self, reason: str, exit_status: int) -> None:
        """Log the second signal, which does not wait for the passes."""
        log.warning(
            "worker ends at once",
            extra={
                "action": "worker_ended_at_once",
                "worker": self._worker,
                "reason": reason,
                "exit_status": exit_status,
            },
        )

    def job_not_ended(self, job: str) -> None:
        """Log the job that did not end within the stop timeout."""
        log.error(
            "job did not end in time",
            extra={
                "action": "job_not_ended",
                "worker": self._worker,
                "job": job,
                "exit_status": EXIT_NOT_GRACEFUL,
            },
        )

    def not_closed(self) -> None:
        """Log that closing took longer than the stop timeout."""
        log.error(
            "worker did not close in time",
            extra={
                "action": "worker_not_closed",
                "worker": self._worker,
                "exit_status": EXIT_NOT_GRACEFUL,
            },
        )

    def close_failed(self, error: BaseException) -> None:
        """Log the error of closing."""
        log.error(
            "worker could not release everything",
            exc_info=loggable(error),
            extra={"action": "worker_close_failed", "worker": self._worker},
        )

    def stopped(self) -> None:
        """Log that everything is released."""
        log.info("worker stopped", extra={"action": "worker_stopped", "worker": self._worker})
