"""What a worker answers to an orchestrator: whether it lives, and whether it works."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shieldtx.errors import BrokerUnavailable
from shieldtx.scheduling.health import NEVER, Health
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.worker_probe import WorkerProbe

MINUTE = timedelta(minutes=1)


class Jobs:
    """Two vital jobs and another one, run by hand, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.obstacle = ""
        self.health = Health(
            watchdog=MINUTE,
            failure_limit=NEVER,
            clock=lambda: self.now,
            wall_clock=lambda: self.now + 1e9,
        )
        jobs = [
            PeriodicJob(
                name="poll",
                run=bool,
                every=timedelta(seconds=1),
                vital=True,
                fresh_for=MINUTE,
                obstacle=lambda: self.obstacle,
            ),
            PeriodicJob(
                name="renew",
                run=bool,
                every=timedelta(seconds=7),
                vital=True,
                fresh_for=timedelta(seconds=30),
            ),
            PeriodicJob(name="purge", run=bool, every=MINUTE),
        ]
        self.probe = WorkerProbe("relay", jobs, self.health)

    def run(self, *names: str) -> None:
        for name in names:
            with self.health.watching(name):
                self.now += 1
            self.health.succeeded(name)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def test_worker_is_ready_when_all_its_vital_jobs_have_succeeded(jobs: Jobs) -> None:
    assert jobs.probe.why_not_ready() == "relay: job poll has not succeeded yet"
    jobs.run("poll")
    assert jobs.probe.why_not_ready() == "relay: job renew has not succeeded yet"
    jobs.run("renew")
    assert jobs.probe.why_not_ready() == ""
    jobs.now += 31
    assert jobs.probe.why_not_ready() == "relay: job renew last succeeded 31 s ago"
    jobs.run("renew")
    assert jobs.probe.why_not_ready() == ""


def test_failing_worker_lives_and_is_not_ready(jobs: Jobs) -> None:
    """A restart repairs no database and no broker."""
    jobs.run("poll", "renew")
    for _ in range(300):
        with jobs.health.watching("poll"), jobs.health.watching("renew"):
            jobs.now += 1
        jobs.health.failed("poll", BrokerUnavailable("down"))
        jobs.health.failed("renew", OSError("down"))
    assert jobs.probe.why_not_live() == ""
    assert jobs.probe.why_not_ready() == "relay: job poll last succeeded 301 s ago"


def test_worker_is_not_ready_from_its_first_failed_pass_on(jobs: Jobs) -> None:
    jobs.run("poll", "renew")
    jobs.health.failed("renew", OSError("down"))
    assert jobs.probe.why_not_ready() == "relay: the last pass of job renew has failed"
    jobs.run("renew")
    assert jobs.probe.why_not_ready() == ""


def test_worker_whose_passes_do_nothing_is_not_ready(jobs: Jobs) -> None:
    """A relay's passes succeed while the broker is unreachable: its events stay in the outbox."""
    jobs.run("poll", "renew")
    jobs.obstacle = "no broker"
    assert jobs.probe.why_not_ready() == "relay: job poll does nothing: no broker"
    assert jobs.probe.why_not_live() == ""


def test_job_that_waits_inside_of_a_run_lives(jobs: Jobs) -> None:
    """A relay waits there for as long as the broker asks."""
    jobs.run("poll", "renew")
    with jobs.health.waiting("poll"):
        jobs.now += 66
        assert jobs.probe.why_not_live() == ""
    jobs.run("renew")
    jobs.now += 61
    assert jobs.probe.why_not_live() == "relay: job poll has not begun for 62 s"


def test_hanging_pass_is_a_reason_for_a_restart(jobs: Jobs) -> None:
    with jobs.health.watching("purge"):
        jobs.now += 60
        jobs.run("poll", "renew")
        assert jobs.probe.why_not_live() == "relay: a pass of job purge has run for 62 s"
    assert jobs.probe.why_not_live() == ""


def test_vital_job_that_no_longer_begins_is_one_too(jobs: Jobs) -> None:
    jobs.now += 61
    assert jobs.probe.why_not_live() == "", "they begin within a minute and their interval"
    jobs.now += 1
    assert jobs.probe.why_not_live() == "relay: job poll has not begun for 62 s"
    jobs.run("poll")
    assert jobs.probe.why_not_live() == ""
    jobs.now += 6
    assert jobs.probe.why_not_live() == "relay: job renew has not begun for 69 s"


def test_times_of_successes_are_unix_times(jobs: Jobs) -> None:
    assert jobs.probe.last_successes() == {}
    jobs.run("poll")
    jobs.now += 5
    jobs.run("purge")
    jobs.now += 5
    assert jobs.probe.last_successes() == {"poll": 1e9 + 1001, "purge": 1e9 + 1007}
