"""Tests that wrong clocks are wrong and that full disks are full."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.errors import DiskFull

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.child_process import ChildProcess
from tests.support.project import ROOT
from tests.verification.faults import clocks, disks
from tests.verification.faults.disks import SmallDisk

MEGABYTE = 1024 * 1024
SMALL_LOG = {"max_wal_size": "32MB", "min_wal_size": "32MB"}
MEGABYTE_OF_LOG = "SELECT pg_logical_emit_message(true, '', repeat('x', 1000000))"

TELL_TIMES = """
import subprocess, sys, threading, time
from datetime import datetime
from pathlib import Path

def lasts(wait):
    began = time.monotonic()
    wait(0.2)
    assert 0.15 < time.monotonic() - began < 5, wait

condition = threading.Condition()
condition.acquire()
lock = threading.Lock()
lock.acquire()
for wait in (
    time.sleep, threading.Event().wait, condition.wait, lambda s: lock.acquire(timeout=s)
):
    lasts(wait)
child = subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True)
file = Path(sys.argv[1])
file.touch()
print(time.time(), datetime.now().timestamp(), child.stdout.strip(), file.stat().st_mtime)
print(time.monotonic())
"""

HOLD_A_DISK = """
import signal, time
from tests.verification.faults.disks import SmallDisk
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell ignores it
with SmallDisk(1) as disk:
    print(disk.path, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def may_set_clocks() -> None:
    if reason := clocks.why_not():
        pytest.skip(reason)


@pytest.fixture
def may_mount() -> None:
    if reason := disks.why_not():
        pytest.skip(reason)


def python(program: str, *arguments: object, log: Path, **environment: str) -> ChildProcess:
    return ChildProcess.start(
        [sys.executable, "-c", program, *map(str, arguments)],
        name="python",
        log=log,
        environment=os.environ | environment,
        directory=ROOT,
    )


@pytest.mark.usefixtures("may_set_clocks")
@pytest.mark.parametrize("off_by", [clocks.HOUR, -clocks.HOUR, timedelta(seconds=-90)])
def test_the_time_of_day_is_off_and_durations_are_right(tmp_path: Path, off_by: timedelta) -> None:
    environment = clocks.environment(off_by)
    began, began_monotonic = time.time(), time.monotonic()
    child = python(TELL_TIMES, tmp_path / "file", log=tmp_path / "log", **environment)
    child.finish(within=60)
    times, monotonic = child.log_tail().splitlines()
    *days, file_time = map(float, times.split())
    passed = time.time() - began
    for day in days:
        assert -1 <= day - began - off_by.total_seconds() <= passed + 1
    assert -1 <= file_time - began <= passed + 1, "files have the right time"
    assert 0 <= float(monotonic) - began_monotonic <= passed + 1


@pytest.mark.usefixtures("may_set_clocks")
def test_what_a_killed_process_leaves_is_swept_up(tmp_path: Path) -> None:
    program = "print('here', flush=True); import time; time.sleep(600)"
    child = python(program, log=tmp_path / "log", **clocks.environment(clocks.HOUR))
    child.await_ready(lambda: child.log_tail() == "here", within=20)
    child.kill()

    def left() -> list[str]:
        return [path.name for path in clocks._SHARED.glob(f"*faketime*_{child.pid}")]

    assert left(), "libfaketime tidies up only where it is let"
    clocks.sweep()
    assert not left()


def test_missing_libfaketime_is_reported_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clocks, "_LIBRARIES", (str(tmp_path),))
    with without_memory(clocks._library):
        assert "apt-get install libfaketime" in (clocks.why_not() or "")
        with pytest.raises(RuntimeError, match="apt-get install libfaketime"):
            clocks.environment(clocks.HOUR)
    library = tmp_path / "lib" / "faketime" / "libfaketimeMT.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"of another architecture")
    with without_memory(clocks._library):
        assert "does not set the clock" in (clocks.why_not() or "")


@contextmanager
def without_memory(cached: Any) -> Iterator[None]:
    cached.cache_clear()
    yield
    cached.cache_clear()


@pytest.mark.usefixtures("may_mount")
def test_small_disk_is_full_when_filled_and_free_again_later() -> None:
    with SmallDisk(4) as disk:
        path = disk.path
        disk.fill(leave=MEGABYTE)
        assert disk.free_bytes == MEGABYTE
        (path / "mine").write_bytes(bytes(MEGABYTE))
        with pytest.raises(OSError, match="No space left on device"):
            (path / "more").write_bytes(b"!")
        disk.free()
        assert disk.free_bytes == 3 * MEGABYTE
    assert not path.exists()
    assert not is_mounted(path)


@pytest.mark.usefixtures("may_mount")
def test_next_run_unmounts_the_disk_of_a_killed_run_alone(tmp_path: Path) -> None:
    killed, alive = (python(HOLD_A_DISK, log=tmp_path / name) for name in ("killed", "alive"))
    for child in (killed, alive):
        child.await_ready(child.log_tail, within=20)
    stale, used = Path(killed.log_tail()), Path(alive.log_tail())
    killed.kill()
    assert is_mounted(stale)
    with SmallDisk(1):
        assert not is_mounted(stale)
        assert not stale.parent.exists()
        assert is_mounted(used)
    alive.send_signal(signal.SIGINT)
    assert alive.wait(20)
    assert not is_mounted(used)


@pytest.mark.usefixtures("may_mount")
def test_a_commit_on_a_full_disk_fails_and_later_ones_do_not() -> None:
    with SmallDisk() as disk, EmbeddedPostgres(disk.path, settings=SMALL_LOG) as server:
        with connect(server) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
            disk.fill()
            with pytest.raises(DiskFull, match="could not extend file"):
                connection.execute("INSERT INTO kept SELECT generate_series(1, 100000)")
            disk.free()
            assert count(connection) == 1000
            connection.execute("INSERT INTO kept VALUES (1001)")
        assert server.pid is not None
        server.restart()
        with connect(server) as connection:
            assert count(connection) == 1001


@pytest.mark.usefixtures("may_mount")
def test_server_crashed_by_a_full_disk_recovers_committed_data() -> None:
    with SmallDisk() as disk, EmbeddedPostgres(disk.path, settings=SMALL_LOG) as server:
        with connect(server) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
            committed = 1
            disk.fill()
            with pytest.raises(DiskFull, match="pg_wal"):  # noqa: PT012 - one of many
                for number in range(2, 100):
                    with connection.transaction():
                        connection.execute("INSERT INTO kept VALUES (%s)", [number])
                        connection.execute(MEGABYTE_OF_LOG)
                    committed += 1
            assert connection.broken, "what cannot be logged is a crash"
        server.kill()  # the server may have ended by itself
        disk.free()
        server.start()
        with connect(server) as connection:
            assert 1 < committed == count(connection)


def connect(server: EmbeddedPostgres) -> psycopg.Connection:
    url = server.url("postgres").replace("+psycopg", "")
    return psycopg.connect(url, autocommit=True)


def count(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def is_mounted(path: Path) -> bool:
    return str(path) in {mount.mountpoint for mount in psutil.disk_partitions(all=True)}
