"""Relay and consumers in the process of their service, on SQLite and a broker in memory."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import (
    ConfigurationError,
    Event,
    InProcessWorkers,
    SchemaMismatch,
    Settings,
    ShieldTx,
    TopicMissing,
)
from shieldtx.scheduling.exit_status import EXIT_FAILING
from shieldtx.testing.memory_broker import MemoryBroker
from tests.conftest import Eventually
from tests.support.log_records import logged

WAIT_S = 20


class Shop:
    """A service with a consumer that notes the orders it has handled."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.broker = MemoryBroker()
        self.app = ShieldTx(
            Settings(source="shop", database_url=f"sqlite:///{folder}/shop.db", **settings),
            broker=self.broker,
        )
        self.app.declare("orders.placed")
        self.handled: list[int] = []
        self.arrived = threading.Event()
        self.app.consumer("warehouse").handles("orders.placed")(self.handle)

    def handle(self, _session: Session, event: Event) -> None:
        self.handled.append(event.payload["id"])
        self.arrived.set()

    def prepare(self) -> None:
        self.app.schema.upgrade()
        self.app.broker.topics().create(self.app.topics(), partitions=1, replication=1)

    def place(self, number: int) -> None:
        with Session(self.app.engine) as session, session.begin():
            self.app.outbox.add(session, Event(type="orders.placed", payload={"id": number}))


@pytest.fixture
def make_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(**settings: object) -> Shop:
        made.append(Shop(tmp_path, **settings))
        return made[-1]

    yield make
    for shop in made:
        shop.app.close()


async def alarm(name: str, status: int) -> None:
    """Be called by nothing."""


def worker_threads() -> list[str]:
    ours = ("shieldtx relay", "shieldtx consumer")
    return [each.name for each in threading.enumerate() if each.name.startswith(ours)]


def test_events_are_published_and_handled_in_the_process(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.prepare()
    with InProcessWorkers(shop.app):
        assert worker_threads() == ["shieldtx relay", "shieldtx consumer warehouse"]
        shop.place(7)
        assert shop.arrived.wait(WAIT_S)
    assert shop.handled == [7]
    assert worker_threads() == []
    with shop.app.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(owner) FROM shield_shard")) == 0


def test_endpoints_of_all_workers_are_open_while_they_run(
    make_shop: Callable[..., Shop], caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    caplog.set_level("INFO")
    shop = make_shop(http="127.0.0.1:0")
    shop.prepare()
    workers = ("relay", "consumer warehouse")
    with InProcessWorkers(shop.app):
        (fields,) = logged(caplog.records, "http_endpoints_open")
        address = f"http://{fields['address']}"

        def are_shown() -> bool:
            with urllib.request.urlopen(f"{address}/metrics", timeout=WAIT_S) as response:  # noqa: S310
                samples = sorted_labels(response.read().decode())
            return all(f'service="shop",worker="{worker}"' in samples for worker in workers)

        eventually(are_shown, "both have succeeded")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{address}/livez", timeout=WAIT_S)  # noqa: S310


def test_workers_are_not_ready_while_the_broker_is_down(
    make_shop: Callable[..., Shop], caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    caplog.set_level("INFO")
    shop = make_shop(http="127.0.0.1:0")
    shop.prepare()

    def answer(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    with InProcessWorkers(shop.app, groups=[]):
        (fields,) = logged(caplog.records, "http_endpoints_open")
        address = fields["address"]
        eventually(lambda: answer("/readyz")[0] == 200, "the relay is ready")
        shop.broker.go_down()
        shop.place(7)
        eventually(lambda: answer("/readyz")[0] == 503, "the relay is not")
        assert "relay: job poll does nothing: " in answer("/readyz")[1]
        assert answer("/livez") == (200, "ok\n")
        shop.broker.come_back()
        eventually(lambda: answer("/readyz")[0] == 200, "it is ready again")


def sorted_labels(metrics: str) -> str:
    """Return samples with their labels in alphabetical order."""
    return re.sub(
        r"{([^}]*)}", lambda labels: "{" + ",".join(sorted(labels[1].split(","))) + "}", metrics
    )


def test_workers_run_while_an_async_block_is_open(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.prepare()

    async def live() -> bool:
        async with InProcessWorkers(shop.app):
            shop.place(7)
            return await asyncio.to_thread(shop.arrived.wait, WAIT_S)

    assert asyncio.run(live())
    assert worker_threads() == []


def test_start_that_is_cancelled_leaves_no_worker(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.prepare()

    async def cancelled_at_once() -> None:
        workers = InProcessWorkers(shop.app)
        opening = asyncio.ensure_future(workers.__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening

    asyncio.run(cancelled_at_once())
    assert worker_threads() == []


def test_only_the_named_workers_run(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.prepare()
    with InProcessWorkers(shop.app, groups=()):
        assert worker_threads() == ["shieldtx relay"]
    with InProcessWorkers(shop.app, relay=False):
        assert worker_threads() == ["shieldtx consumer warehouse"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"groups": ["elsewhere"]}, "elsewhere"),
        ({"groups": "warehouse"}, "collection of names"),
        ({"on_failure": alarm}, "on_failure of InProcessWorkers: alarm .* is a coroutine function"),
        ({"on_failure": lambda name: None}, r"cannot be called as on_failure\(name, status\)"),
        ({"relay": False, "groups": ()}, "nothing to run"),
    ],
)
def test_wrong_arguments_are_refused(
    make_shop: Callable[..., Shop], given: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        InProcessWorkers(make_shop().app, **given)


def test_group_that_is_declared_later_runs_too(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    workers = InProcessWorkers(shop.app, relay=False)
    shop.app.consumer("idle")
    shop.app.consumer("later").handles("orders.placed")(shop.handle)
    shop.prepare()
    with workers:
        names = ["shieldtx consumer later", "shieldtx consumer warehouse"]
        assert worker_threads() == names, "a group without handlers has nothing to do"


def test_missing_tables_stop_the_start(make_shop: Callable[..., Shop]) -> None:
    with pytest.raises(SchemaMismatch), InProcessWorkers(make_shop().app):
        pytest.fail("it has started")
    assert worker_threads() == []


def test_missing_topics_stop_the_start(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.app.schema.upgrade()
    with pytest.raises(TopicMissing), InProcessWorkers(shop.app):
        pytest.fail("it has started")
    assert worker_threads() == []


def test_second_start_is_refused(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.prepare()
    with (
        InProcessWorkers(shop.app) as workers,
        pytest.raises(ConfigurationError, match="run already"),
    ):
        workers.start()
    with workers:
        assert len(worker_threads()) == 2, "they may run again"


def test_failing_worker_may_stop_the_others(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(failure_limit=0.3)
    shop.prepare()
    stopped = threading.Event()

    def stop(_worker: str, _status: int) -> None:
        workers.stop()
        stopped.set()

    workers = InProcessWorkers(shop.app, on_failure=stop)
    workers.start()
    with shop.app.engine.begin() as connection:
        connection.execute(text("DROP TABLE shield_inbox"))
    assert stopped.wait(WAIT_S)
    workers.stop()


def test_worker_that_keeps_failing_is_reported(
    make_shop: Callable[..., Shop], caplog: pytest.LogCaptureFixture
) -> None:
    shop = make_shop(failure_limit=0.3)
    shop.prepare()
    failed: list[tuple[str, int]] = []
    reported = threading.Event()

    def note(worker: str, status: int) -> None:
        failed.append((worker, status))
        reported.set()

    with InProcessWorkers(shop.app, relay=False, on_failure=note):
        with shop.app.engine.begin() as connection:
            connection.execute(text("DROP TABLE shield_inbox"))
        assert reported.wait(WAIT_S)
    assert failed == [("consumer warehouse", EXIT_FAILING)]
    (fields,) = logged(caplog.records, "in_process_worker_failed")
    assert fields == {"worker": "consumer warehouse", "status": EXIT_FAILING}
