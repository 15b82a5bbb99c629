"""The end of a worker that fails for too long, in a host's thread, and after a failed start."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from shieldtx.errors import BrokerUnavailable
from shieldtx.scheduling.exit_status import EXIT_FAILING, EXIT_STOPPED
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.worker import Worker
from tests.support import child_process
from tests.support.log_records import fields_of, logged

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=10)
LIMIT = timedelta(milliseconds=300)


class Made:
    """A worker of one job, and its exit status."""

    def __init__(
        self,
        run: Callable[[], object],
        *,
        vital: bool = True,
        limit: timedelta = LIMIT,
    ) -> None:
        self.closed = 0
        self.worker = Worker(
            name="bench",
            jobs=[PeriodicJob(name="poll", run=lambda: run() is True, every=SOON, vital=vital)],
            close=self._close,
            stop_timeout=timedelta(seconds=20),
            watchdog=HOUR,
            failure_limit=limit,
        )

    def _close(self) -> None:
        self.closed += 1


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_worker_without_one_good_pass_ends_itself(caplog: pytest.LogCaptureFixture) -> None:
    made = Made(failing(LookupError("the password is refused")))
    assert made.worker.run() == EXIT_FAILING
    assert made.closed == 1
    [critical] = [fields_of(r) for r in caplog.records if r.levelno == logging.CRITICAL]
    assert (critical["action"], critical["job"]) == ("job_failing", "poll")
    assert critical["exit_status"] == EXIT_FAILING
    assert "SHIELDTX_FAILURE_LIMIT" in str(critical["advice"])
    assert critical["error"] == "LookupError: the password is refused"


def interrupted_start() -> None:
    raise OSError("standard output is closed")


@pytest.mark.parametrize(
    ("run", "ready", "reason"),
    [
        (failing(LookupError("no such table")), lambda: None, "job poll keeps failing"),
        (failing(SystemExit(3)), lambda: None, "SystemExit in job poll"),
        (lambda: None, interrupted_start, "start failed: OSError"),
    ],
    ids=["failing", "ended", "start"],
)
def test_stop_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture, run: Callable[[], None], ready: Callable[[], None], reason
) -> None:
    caplog.set_level(logging.INFO, "shieldtx")
    with suppress(OSError):
        Made(run).worker.run(ready)
    assert logged(caplog.records, "worker_stopping") == [{"worker": "bench", "reason": reason}]


@pytest.mark.parametrize(
    "made",
    [
        lambda run: Made(run, vital=False),
        lambda run: Made(run, limit=timedelta(0)),
    ],
    ids=["not vital", "no limit"],
)
def test_failing_tick_next_to_a_good_one_keeps_the_worker(made: Callable[..., Made]) -> None:
    assert ended_after(LIMIT * 5, made(failing(LookupError("not there")))) == EXIT_STOPPED


def test_outage_of_the_broker_does_not_count() -> None:
    made = Made(failing(BrokerUnavailable("Kafka is away")))
    assert ended_after(LIMIT * 5, made) == EXIT_STOPPED


def ended_after(pause: timedelta, made: Made) -> int:
    threading.Timer(pause.total_seconds(), made.worker.stop).start()
    return made.worker.run()


def test_worker_runs_in_a_thread_of_its_host() -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    passed = threading.Event()
    made = Made(passed.set)
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(made.worker.run()))
    thread.start()
    assert passed.wait(20)
    assert {number: signal.getsignal(number) for number in before} == before
    made.worker.stop()
    thread.join(20)
    assert ended == [EXIT_STOPPED]
    assert made.closed == 1


RETURNING_HOST = """
import logging
import sys
import threading
import time
from datetime import timedelta

from shieldtx.logs import PlainFormatter
from shieldtx.scheduling.periodic_job import PeriodicJob
from shieldtx.scheduling.worker import Worker

handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(PlainFormatter(tracebacks=True))
logging.basicConfig(level=logging.INFO, handlers=[handler])
passed = threading.Event()


def run():
    time.sleep(0.01)
    passed.set()
    return {more}


worker = Worker(
    name="bench",
    jobs=[PeriodicJob(name="poll", run=run, every=timedelta(milliseconds=10))],
    close=lambda: print("closed"),
    stop_timeout=timedelta(seconds=10),
    watchdog=timedelta(hours=1),
)
threading.Thread(target=lambda: print("status", worker.run())).start()
passed.wait(10)
"""
"""A host whose main thread returns without `Worker.stop`."""


HOST_OF_A_SERVICE = """
import logging
import sys
import threading

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from shieldtx import Event, ShieldTx
from shieldtx.logs import PlainFormatter
from shieldtx.testing.memory_broker import MemoryBroker
from shieldtx.settings.settings import Settings
from shieldtx.app.workers import consumer_process, relay_process

broker = MemoryBroker()
broker.topics().create(["stock.taken.commit"], partitions=1, replication=1)
app = ShieldTx(Settings(source="stock", database_url=sys.argv[1]), broker=broker)
app.schema.upgrade()
app.declare("stock.taken")
handled = threading.Event()


@app.consumer("stock").handles("stock.taken")
def handle(session, event):
    handled.set()


handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(PlainFormatter(tracebacks=True))
logging.basicConfig(level=logging.INFO, handlers=[handler])
for worker in (relay_process(app), consumer_process(app, "stock")):
    threading.Thread(target=lambda worker=worker: print("status", worker.run())).start()
with Session(app.engine) as session:
    app.outbox.add(session, Event(type="stock.taken", payload={}))
    session.commit()
handled.wait(20)
"""
"""A host whose main thread returns while a relay and a consumer run in threads of their own."""


@pytest.mark.parametrize("more", [False, True], ids=["idle", "busy"])
def test_worker_in_a_thread_ends_with_the_host_main_thread(more: bool) -> None:
    lines = output_of(RETURNING_HOST.format(more=more))
    assert "action=main_thread_returned worker=bench" in fields_in(lines)
    assert fields_in(lines)[-3:] == ["closed", "action=worker_stopped worker=bench", "status 0"]


def test_relay_and_consumer_threads_end_with_their_host(tmp_path: Path) -> None:
    lines = output_of(HOST_OF_A_SERVICE, f"sqlite:///{tmp_path / 'stock.db'}")
    assert lines.count("status 0") == 2, lines
    stopped = [
        "action=worker_stopped worker=relay",
        'action=worker_stopped worker="consumer stock"',
    ]
    assert set(stopped) <= set(fields_in(lines))


def fields_in(lines: list[str]) -> list[str]:
    """What log lines say from their actions on; other lines as they are."""
    return [re.sub(r".* (?=action=)", "", line) for line in lines]


def output_of(script: str, *arguments: str) -> list[str]:
    """Run a script that exits by itself with status 0, and return the lines of its output."""
    host = child_process.start(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = host.communicate(timeout=40)
    finally:
        host.kill()
        host.wait()
    assert host.returncode == 0, printed
    return str(printed).splitlines()


@contextmanager
def sighup_is(action: signal.Handlers) -> Iterator[None]:
    """Begin with SIGHUP as a terminal (SIG_DFL) or nohup (SIG_IGN) leaves it."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sighup_ends_a_worker_gracefully() -> None:
    made = Made(lambda: None)
    with sighup_is(signal.SIG_DFL):
        assert made.worker.run(lambda: os.kill(os.getpid(), signal.SIGHUP)) == EXIT_STOPPED
    assert made.closed == 1


def test_worker_under_nohup_outlives_its_terminal() -> None:
    made = Made(lambda: None)

    def hang_up() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not made.worker.stopping
        made.worker.stop()

    with sighup_is(signal.SIG_IGN):
        assert made.worker.run(hang_up) == EXIT_STOPPED


def test_failed_start_closes_the_opened_resources() -> None:
    made = Made(lambda: None)
    with pytest.raises(LookupError):
        made.worker.run(failing(LookupError("standard output is closed")))
    assert made.closed == 1
    assert not made.worker._scheduler.running
