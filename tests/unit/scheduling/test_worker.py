"""The lifecycle of a worker process: its jobs, their errors, and every way to stop it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo

import apscheduler.schedulers.base
import pytest
from apscheduler.schedulers.base import BaseScheduler

import shieldtx.scheduling.worker
import shieldtx.scheduling.worker_log
from shieldtx.scheduling import process_state
from shieldtx.scheduling.exit_status import EXIT_HUNG, EXIT_NOT_GRACEFUL, EXIT_STOPPED
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.worker import Worker
from tests.support import child_process
from tests.support.log_records import logged

NEVER = timedelta(hours=1)
SOON = timedelta(milliseconds=10)


class Bench:
    """A worker under construction, whose jobs may stop it."""

    def __init__(self) -> None:
        self.jobs: list[PeriodicJob] = []
        self.closed = 0
        self.prepare: Callable[[], None] = lambda: None
        self.worker: Worker | None = None

    def job(self, name: str, run: Callable[[], object], every: timedelta = NEVER) -> None:
        self.jobs.append(PeriodicJob(name=name, run=lambda: run() is True, every=every))

    def close(self) -> None:
        self.closed += 1

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        self.worker = Worker(
            name="bench",
            jobs=self.jobs,
            close=self.close,
            stop_timeout=timedelta(seconds=20),
            watchdog=timedelta(seconds=60),
        )
        self.prepare()
        return self.worker.run(ready)

    def stop(self) -> None:
        self.worker.stop()


class Circle:
    """Refers to itself, as the frames of an error do."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_tick_runs_at_once_and_then_periodically(bench: Bench):
    times: list[float] = []

    def run() -> None:
        times.append(time.monotonic())
        if len(times) == 4:
            bench.stop()

    bench.job("poll", run, timedelta(milliseconds=50))
    began = time.monotonic()
    assert bench.run() == EXIT_STOPPED
    assert len(times) == 4
    assert times[-1] - began >= 0.14
    assert bench.closed == 1


def test_tick_with_a_backlog_runs_again_without_waiting(bench: Bench):
    rest = [True] * 50

    def run() -> bool:
        if not rest:
            bench.stop()
        return bool(rest) and rest.pop()

    bench.job("poll", run)
    assert bench.run() == EXIT_STOPPED
    assert rest == []


class WallClock(datetime):
    """The clock of the machine, which is changed while the worker runs."""

    ahead = timedelta(0)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> type[WallClock]:
    for module in (apscheduler.schedulers.base, process_state, shieldtx.scheduling.worker):
        monkeypatch.setattr(module, "datetime", WallClock)
    monkeypatch.setattr(WallClock, "ahead", timedelta(0))
    return WallClock


@pytest.mark.parametrize("by", [timedelta(hours=-1), timedelta(hours=1)])
@pytest.mark.parametrize("when", ["it runs", "it starts"])
def test_change_of_the_clock_delays_no_tick(bench: Bench, wall_clock, by, when):
    runs: list[float] = []
    is_set = threading.Event()

    def run() -> None:
        runs.append(time.monotonic())
        if len(runs) == 3:
            wall_clock.ahead = by
            is_set.set()
        if len(runs) == 6:
            bench.stop()

    def ready() -> None:
        if when == "it starts":
            assert is_set.wait(20)

    bench.job("poll", run, SOON)
    too_late = threading.Timer(20, bench.stop)
    too_late.start()
    assert bench.run(ready) == EXIT_STOPPED
    too_late.cancel()
    assert len(runs) == 6


def test_error_in_a_tick_is_logged_and_the_tick_runs_again(bench: Bench, caplog):
    runs = []

    def run() -> None:
        runs.append(1)
        if len(runs) == 3:
            bench.stop()
        raise LookupError("the database is away")

    bench.job("poll", run, SOON)
    with caplog.at_level(logging.ERROR, logger="shieldtx.scheduling.worker_log"):
        assert bench.run() == EXIT_STOPPED
    assert len(runs) == 3
    of_first = {"worker": "bench", "job": "poll", "count": 1, "duration_s": 0}
    assert logged(caplog.records, "job_failed") == [of_first]
    assert "LookupError: the database is away" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(3), 3),
        (SystemExit(), EXIT_NOT_GRACEFUL),
        (SystemExit("no licence"), EXIT_NOT_GRACEFUL),
        (SystemExit(256), EXIT_NOT_GRACEFUL),
        (KeyboardInterrupt(), EXIT_NOT_GRACEFUL),
    ],
    ids=repr,
)
@pytest.mark.parametrize("where", ["pass", "close"])
def test_exit_and_interrupt_end_the_process(bench: Bench, caplog, error, status, where):
    def run() -> None:
        if where == "pass":
            raise error
        bench.stop()

    def close() -> None:
        bench.closed += 1
        if where == "close":
            raise error

    bench.job("poll", run)
    bench.close = close
    assert bench.run() == (status if where == "pass" else EXIT_NOT_GRACEFUL)
    assert bench.closed == 1
    assert type(error).__name__ in caplog.text
    ended = logged(caplog.records, "job_ended_process")
    assert [(each["job"], each["error_type"], each["exit_status"]) for each in ended] == (
        [("poll", type(error).__name__, status)] if where == "pass" else []
    )


def test_reference_cycles_of_an_error_are_freed_before_next_run(bench: Bench, monkeypatch):
    """A worker's garbage collector runs seldom, and an outage raises an error each second."""
    # Pytest keeps the logged records.
    monkeypatch.setattr(shieldtx.scheduling.worker_log.log, "disabled", True)
    kept: list[weakref.ref[Circle]] = []
    freed: list[bool] = []

    def run() -> None:
        freed.extend(circle() is None for circle in kept)
        circle = Circle()
        kept.append(weakref.ref(circle))
        if len(kept) == 3:
            bench.stop()
        raise ConnectionError

    bench.job("poll", run, SOON)
    gc.disable()
    try:
        bench.run()
    finally:
        gc.enable()
    assert freed == [True] * 3


def test_error_in_one_tick_does_not_affect_the_others(bench: Bench):
    runs = []

    def fail() -> None:
        raise LookupError("always")

    def run() -> None:
        runs.append(1)
        if len(runs) == 5:
            bench.stop()

    bench.job("renew", fail, SOON)
    bench.job("poll", run, SOON)
    assert bench.run() == EXIT_STOPPED


def test_woken_tick_runs_at_once(bench: Bench):
    ran = threading.Event()
    runs: list[float] = []

    def run() -> None:
        runs.append(time.monotonic())
        ran.set()
        if len(runs) == 2:
            bench.stop()

    def wake_when_idle() -> None:
        ran.wait(timeout=20)
        while len(runs) < 2:
            bench.worker.wake("poll")
            time.sleep(0.01)

    bench.job("poll", run, NEVER)
    waker = threading.Thread(target=wake_when_idle, daemon=True)
    began = time.monotonic()
    assert bench.run(ready=waker.start) == EXIT_STOPPED
    assert runs[1] - began < 5


def test_tick_woken_during_its_run_runs_once_more(bench: Bench):
    runs = []

    def run() -> None:
        runs.append(1)
        if len(runs) == 1:
            for _ in range(100):
                bench.worker.wake("poll")
        else:
            bench.stop()

    bench.job("poll", run, NEVER)
    assert bench.run() == EXIT_STOPPED
    assert len(runs) == 2


def test_lingering_tick_is_woken_without_the_scheduler(bench: Bench, monkeypatch):
    monkeypatch.delattr(BaseScheduler, "modify_job")
    runs = []

    def run() -> None:
        runs.append(1)
        if len(runs) == 1:
            threading.Timer(0.2, lambda: bench.worker.wake("poll")).start()
        else:
            bench.stop()

    bench.jobs.append(PeriodicJob(name="poll", run=lambda: bool(run()), every=NEVER, linger=NEVER))
    assert bench.run() == EXIT_STOPPED
    assert len(runs) == 2


def test_lingering_tick_does_not_delay_the_end(bench: Bench):
    bench.jobs.append(PeriodicJob(name="poll", run=lambda: False, every=NEVER, linger=NEVER))
    began = time.monotonic()
    threading.Timer(0.2, bench.stop).start()
    assert bench.run() == EXIT_STOPPED
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("seconds", [-3600.0, 0.0, 0.01, 0.3])
def test_tick_with_a_known_next_time_runs_then_and_not_before(bench: Bench, seconds: float):
    runs: list[float] = []
    asked: list[float] = []

    def until_next() -> timedelta:
        asked.append(time.monotonic())
        return timedelta(seconds=seconds)

    def run() -> bool:
        runs.append(time.monotonic())
        if len(runs) == 3:
            bench.stop()
        return False

    bench.jobs.append(PeriodicJob(name="poll", run=run, every=NEVER, until_next=until_next))
    assert bench.run() == EXIT_STOPPED
    assert len(runs) == 3
    for at, following in zip(asked, runs[1:], strict=False):
        assert seconds - 0.001 <= following - at < max(seconds, 0) + 5


def test_tick_is_asked_for_its_next_time_only_when_idle(bench: Bench):
    order: list[str] = []

    def run() -> bool:
        order.append("pass")
        return len(order) < 3

    def until_next() -> None:
        order.append("asked")
        bench.stop()

    bench.jobs.append(PeriodicJob(name="poll", run=run, every=NEVER, until_next=until_next))
    assert bench.run() == EXIT_STOPPED
    assert order == ["pass", "pass", "pass", "asked"]


@pytest.mark.parametrize("pause", [None, timedelta(hours=2), timedelta.max])
def test_tick_without_an_earlier_time_runs_periodically(bench: Bench, pause: timedelta | None):
    runs = []

    def run() -> bool:
        runs.append(1)
        if len(runs) == 3:
            bench.stop()
        return False

    bench.jobs.append(PeriodicJob(name="poll", run=run, every=SOON, until_next=lambda: pause))
    assert bench.run() == EXIT_STOPPED


def test_tick_woken_while_it_is_asked_runs_once_more(bench: Bench):
    runs = []

    def run() -> bool:
        runs.append(1)
        if len(runs) == 2:
            bench.stop()
        return False

    def until_next() -> timedelta:
        bench.worker.wake("poll")
        return NEVER / 2

    bench.jobs.append(PeriodicJob(name="poll", run=run, every=NEVER, until_next=until_next))
    assert bench.run() == EXIT_STOPPED
    assert len(runs) == 2


def test_error_about_the_next_time_keeps_the_interval(bench: Bench, caplog):
    runs = []

    def run() -> bool:
        runs.append(1)
        if len(runs) == 3:
            bench.stop()
        return False

    def until_next() -> None:
        raise LookupError("the database is away")

    bench.jobs.append(PeriodicJob(name="poll", run=run, every=SOON, until_next=until_next))
    assert bench.run() == EXIT_STOPPED
    (failed,) = logged(caplog.records, "job_failed")
    assert (failed["worker"], failed["job"]) == ("bench", "poll")


def test_tick_never_runs_twice_concurrently(bench: Bench):
    running = threading.Lock()
    overlaps = []
    runs = []

    def run() -> None:
        if not running.acquire(blocking=False):
            overlaps.append(1)
            return
        runs.append(1)
        for _ in range(3):
            bench.worker.wake("poll")
            time.sleep(0.002)
        running.release()
        if len(runs) > 20:
            bench.stop()

    bench.job("poll", run, timedelta(milliseconds=1))
    assert bench.run() == EXIT_STOPPED
    assert overlaps == []


def test_close_comes_after_the_last_pass_has_ended(bench: Bench):
    order = []

    def run() -> None:
        bench.stop()
        time.sleep(0.1)
        order.append("pass")

    bench.close = lambda: order.append("closed")
    bench.job("poll", run)
    assert bench.run() == EXIT_STOPPED
    assert order == ["pass", "closed"]


def test_failed_close_is_not_a_graceful_end(bench: Bench, caplog):
    def fail() -> None:
        raise ConnectionError("the broker is away")

    bench.close = fail
    bench.job("poll", bench.stop)
    assert bench.run() == EXIT_NOT_GRACEFUL
    assert logged(caplog.records, "worker_close_failed") == [{"worker": "bench"}]


def test_tick_after_the_end_neither_runs_nor_waits(bench: Bench):
    runs = []

    def run() -> None:
        runs.append(1)
        bench.stop()

    bench.job("poll", run)
    bench.run()
    # The scheduler may have passed this tick to its threads at the last moment.
    late = threading.Thread(target=bench.worker._run_job, args=[bench.jobs[0]], daemon=True)
    late.start()
    late.join(timeout=10)
    assert not late.is_alive()
    bench.worker.wake("poll")
    assert runs == [1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_worker_at_any_time(number, caplog):
    """Afterwards the earlier handler is installed again."""
    caplog.set_level(logging.INFO, "shieldtx")
    before = signal.getsignal(number)
    for delay_ms in range(0, 40, 2):
        bench = Bench()
        bench.job("poll", lambda: None, timedelta(milliseconds=1))
        timer = threading.Timer(delay_ms / 1000, os.kill, [os.getpid(), number])
        assert bench.run(ready=timer.start) == EXIT_STOPPED
        assert signal.getsignal(number) is before
    reasons = {each["reason"] for each in logged(caplog.records, "worker_stopping")}
    assert reasons == {signal.Signals(number).name}


PROCESS = """
import os, sys, time
from datetime import timedelta
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.worker import Worker

def say(word):
    os.write(1, f"{word}\\n".encode())
    return False

def hang():
    say("hanging")
    time.sleep(600)

hung, stop_timeout, watchdog = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
worker = Worker(
    name="w",
    jobs=[
        PeriodicJob(
            name="poll",
            run=hang if hung == "pass" else lambda: False,
            every=timedelta(hours=1),
        )
    ],
    close=hang if hung == "close" else lambda: say("closed"),
    stop_timeout=timedelta(seconds=stop_timeout),
    watchdog=timedelta(seconds=watchdog),
)
sys.exit(worker.run(ready=lambda: say("ready")))
"""


@contextmanager
def process(hung: str, *, stop_timeout: float, watchdog: float = 600) -> Iterator[subprocess.Popen]:
    """Start a worker process, ready, of which a part hangs."""
    command = [sys.executable, "-c", PROCESS, hung, str(stop_timeout), str(watchdog)]
    with child_process.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            said = {started.stdout.readline().strip() for _ in range(1 + (hung == "pass"))}
            assert said == ({"ready", "hanging"} if hung == "pass" else {"ready"})
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_process_gracefully(number):
    with process("nothing", stop_timeout=60) as worker:
        worker.send_signal(number)
        assert worker.wait(timeout=30) == EXIT_STOPPED
        assert worker.stdout.read() == "closed\n"


@pytest.mark.parametrize("hung", ["pass", "close"])
def test_hanging_part_is_abandoned_at_the_stop_deadline(hung):
    with process(hung, stop_timeout=1) as worker:
        worker.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert worker.wait(timeout=30) == EXIT_NOT_GRACEFUL
        assert time.monotonic() - began > 0.8
        assert "closed" not in worker.stdout.read()


@pytest.mark.parametrize("hung", ["pass", "close"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_exits_at_once(hung, number):
    with process(hung, stop_timeout=600) as worker:
        worker.send_signal(signal.SIGTERM)
        if hung == "close":
            assert worker.stdout.readline() == "hanging\n"
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.5)
        worker.send_signal(number)
        assert worker.wait(timeout=20) == 128 + number
        assert "worker ends at once" in worker.stderr.read()


def test_hanging_pass_ends_the_process():
    with process("pass", stop_timeout=600, watchdog=0.5) as worker:
        assert worker.wait(timeout=30) == EXIT_HUNG


def test_worker_lives_while_a_job_waits_and_not_after_its_end(bench: Bench):
    """A job may wait for longer than the watchdog allows a pass."""
    answers: list[str] = []
    now = [0.0]

    def run() -> timedelta:
        if now[0]:
            bench.stop()
            return timedelta(0)
        threading.Thread(target=look, daemon=True).start()
        return NEVER

    def look() -> None:
        while "poll" not in bench.worker._health._waiting:
            time.sleep(0.001)
        now[0] = 1e6
        answers.append(bench.worker.probe.why_not_live())
        bench.worker.wake("poll")

    bench.jobs.append(PeriodicJob(name="poll", run=run, every=SOON, vital=True))
    bench.prepare = lambda: setattr(bench.worker._health, "_clock", lambda: now[0])
    assert bench.run() == EXIT_STOPPED
    now[0] = 2e6
    answers.append(bench.worker.probe.why_not_live())
    assert answers == ["", "bench: job poll has not begun for 1000000 s"]
