"""Signals and streams of worker processes: at start, on a terminal, in a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.conftest import HERE, SHIELDTX, Shop, status_of
from tests.conftest import Eventually
from tests.support import child_process

FIRST_PROCESS = (
    "import os; os.getpid = lambda: 1\n"  # as in a container without an init process
    "from shieldtx.cli import main; main()"
)


@contextmanager
def relay_with(shop: Shop, redirection: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a relay whose standard streams are redirected as by a shell."""
    process = child_process.start(
        ["sh", "-c", f'exec "$@" relay {redirection}', "sh", *SHIELDTX],
        env=shop.orders._environment({}, app=True),
        cwd=HERE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_worker_needs_no_standard_output(
    shop: Shop, eventually: Eventually, redirection: str
) -> None:
    shop.migrate()
    with relay_with(shop, redirection) as relay:
        shop.place(range(4))
        eventually(lambda: shop.orders.outbox() == {"PROCESSED": 4}, "it works", within=40)
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(20) == 0
    assert shop.orders.shards_by_owner() == {None: 64}


def test_worker_survives_a_closed_standard_output(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    reading, writing = os.pipe()
    os.close(reading)
    relay = child_process.start(
        [*SHIELDTX, "relay"],
        env=shop.orders._environment({}, app=True),
        cwd=HERE,
        stdout=writing,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        shop.place(range(4))
        eventually(lambda: shop.orders.outbox() == {"PROCESSED": 4}, "it works", within=40)
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(20) == 0
    finally:
        relay.kill()
        relay.wait()


@pytest.fixture
def hangup() -> Iterator[None]:
    """Let a hangup end the processes that start now, although the tests may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_sighup_releases_the_shards_of_a_worker(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    relay = shop.orders.start("relay", SHIELDTX_RELAY_LEASE="600")
    eventually(lambda: shop.orders.shards_by_owner() != {None: 64}, "it holds shards")
    relay.send_signal(signal.SIGHUP)
    assert status_of(relay) == 0
    assert shop.orders.shards_by_owner() == {None: 64}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_first_process_of_a_container_at_start(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text("print('importing')\nimport time\ntime.sleep(600)\n")
    process = child_process.start(
        [sys.executable, "-u", "-c", FIRST_PROCESS, "--app", "slow:shield", "relay"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # The output of a module at import goes to standard error.
        assert process.stderr.readline() == "importing\n"
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    finally:
        process.kill()
        process.wait()


def test_refused_password_ends_a_worker(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.orders.execute("CREATE ROLE rotated SUPERUSER LOGIN PASSWORD 'first'")
    try:
        url = shop.writer.settings.url.set(username="rotated", password="first")
        relay = shop.orders.start(
            "relay",
            SHIELDTX_DATABASE_URL=url.render_as_string(hide_password=False),
            SHIELDTX_FAILURE_LIMIT="2",
        )
        shop.orders.execute("ALTER ROLE rotated PASSWORD 'second'")
        shop.orders.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'"
        )
        assert status_of(relay, within=40) == 75
    finally:
        shop.orders.execute("DROP ROLE rotated")
    assert "password authentication failed" in relay.log.read_text()
    assert "SHIELDTX_FAILURE_LIMIT" in relay.log.read_text()
