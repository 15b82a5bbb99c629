"""What a worker logs about failing passes: once at first, once a minute, and at the end."""

from __future__ import annotations

import logging

import pytest

from shieldtx.errors import BrokerUnavailable
from shieldtx.scheduling.health import Symptom
from shieldtx.scheduling.worker_log import WorkerIdentity, WorkerLog
from tests.support.log_records import logged
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def worker_log(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> WorkerLog:
    caplog.set_level(logging.INFO, "shieldtx")
    identity = WorkerIdentity(group="stock", database="db:5432/shop", bootstrap="kafka:9092")
    return WorkerLog("consumer stock", identity, clock=clock)


def fail(worker_log: WorkerLog, clock: ManualClock, error: Exception) -> None:
    """Let 90 passes of a job fail, one a second, and the next one succeed."""
    for _ in range(90):
        worker_log.job_failed("poll", error)
        clock.now += 1
    for _ in range(2):
        worker_log.job_succeeded("poll")


def test_failing_job_is_logged_once_a_minute_and_at_its_end(worker_log, clock, caplog) -> None:
    fail(worker_log, clock, OSError("the database is away"))
    job = {"worker": "consumer stock", "job": "poll"}
    assert logged(caplog.records, "job_failed") == [
        {**job, "count": 1, "duration_s": 0},
        {**job, "count": 61, "duration_s": 60},
    ]
    recovered = {**job, "count": 90, "duration_s": 90}
    assert logged(caplog.records, "job_recovered") == [recovered]
    assert len(caplog.records) == 3


def test_unreachable_broker_is_a_warning_of_the_group(worker_log, clock, caplog) -> None:
    fail(worker_log, clock, BrokerUnavailable("no broker at kafka:9092"))
    of_group = {"relay": None, "group": "stock"}
    reason = {"count": None, "reason": "no broker at kafka:9092"}
    assert logged(caplog.records, "broker_unavailable") == [
        {**of_group, "duration_s": 0, **reason},
        {**of_group, "duration_s": 60, **reason},
    ]
    assert logged(caplog.records, "broker_available") == [{**of_group, "duration_s": 90}]
    assert len(caplog.records) == 3


def test_job_failing_names_the_last_error(worker_log, caplog) -> None:
    worker_log.job_failed("poll", OSError("the database is away"))
    worker_log.job_failing(Symptom(job="poll", seconds=600))
    (failing,) = logged(caplog.records, "job_failing")
    assert failing["error"] == "OSError: the database is away"


def test_start_names_group_database_and_broker(worker_log, caplog) -> None:
    worker_log.started()
    (started,) = logged(caplog.records, "worker_started")
    assert (started["group"], started["database"]) == ("stock", "db:5432/shop")
    assert started["bootstrap"] == "kafka:9092"
