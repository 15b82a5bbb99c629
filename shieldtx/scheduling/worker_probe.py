"""What an orchestrator may ask a worker: whether it lives, and whether it works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shieldtx.scheduling.health import Health
from shieldtx.scheduling.periodic_job import PeriodicJob


class WorkerProbe:
    """Answers about one worker, from any thread, without a call of the database or the broker."""

    def __init__(self, name: str, jobs: Iterable[PeriodicJob], health: Health) -> None:
        self.name = name
        self._vital = [job for job in jobs if job.vital]
        self._health = health

    def why_not_live(self) -> str:
        """Return why a restart would help, "" where it would not.

        A pass has hung, or a vital job has not begun one for the time that the watchdog allows. An
        unreachable database or broker is no reason.
        """
        if (hung := self._health.hung()) is not None:
            return f"{self.name}: a pass of job {hung.job} has run for {hung.seconds:.0f} s"
        for job in self._vital:
            if job.every is None:
                continue
            if (idle := self._health.idle(job.name, every=job.every)) is not None:
                return f"{self.name}: job {job.name} has not begun for {idle.seconds:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        """Return which vital job has had no success lately, "" where all have."""
        for job in self._vital:
            seconds = self._health.since_success(job.name)
            if seconds is None:
                return f"{self.name}: job {job.name} has not succeeded yet"
            if seconds > job.fresh_for.total_seconds():
                return f"{self.name}: job {job.name} last succeeded {seconds:.0f} s ago"
            if self._health.has_failed(job.name):
                return f"{self.name}: the last pass of job {job.name} has failed"
            if obstacle := job.obstacle():
                return f"{self.name}: job {job.name} does nothing: {obstacle}"
        return ""

    def last_successes(self) -> Mapping[str, float]:
        """Return the Unix times at which each job last succeeded, of those that did."""
        return self._health.last_successes()
