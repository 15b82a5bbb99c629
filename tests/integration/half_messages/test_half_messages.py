"""Half messages on PostgreSQL: local transactions elsewhere, lost commit calls, checks, the
barrier.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx import Event, LocalOutcome, ShieldTx
from shieldtx.errors import (
    ConfigurationError,
    EventRefused,
    IllegalTransition,
    LateTransaction,
    SchemaMismatch,
    TransactionRefused,
    UnknownEventType,
)
from shieldtx.half_messages import messages
from shieldtx.half_messages.check_back import CheckBack, CheckBackResult
from shieldtx.store import half_message_admin
from tests.support import child_process
from tests.support.log_records import fields_of, logged
from tests.support.service import Service, Wire, drain, make_topics

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN
HOUR = timedelta(hours=1)
PLACED = "orders.placed"
Guard: TypeAlias = Callable[[Any], None]


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders", half_check_timeout=5.0, barrier_patience=0.3)
    service.app.declare(PLACED)
    service.app.declare("orders.paid")
    make_topics(service)
    return service


def entries(ledger: Engine) -> list[str]:
    with ledger.connect() as connection:
        return list(connection.scalars(text("SELECT what FROM entries")))


def enter(session: Any, what: str = "done") -> None:
    session.execute(text("INSERT INTO entries VALUES (:what)"), {"what": what})


def status(service: Service, event_id: UUID) -> str:
    [(found,)] = service.rows("SELECT status FROM shield_outbox WHERE event_id = :id", id=event_id)
    return str(found)


def let_time_pass(service: Service) -> None:
    """Make the next check of every half message due."""
    service.execute(
        "UPDATE shield_outbox SET check_at = now() - interval '1 s' WHERE check_at IS NOT NULL"
    )


def let_time_run_out(service: Service) -> None:
    """Let every half message exceed its age, and park it."""
    service.execute("UPDATE shield_outbox SET due_at = now() WHERE check_at IS NOT NULL")
    service.app.half_messages.parking().run_once()


def check(service: Service) -> CheckBackResult:
    """Make the next check of every half message of the single type with a checker or a barrier."""
    let_time_pass(service)
    [check_back] = service.app.half_messages.check_backs()
    return check_back.run_once()


def published(service: Service, wire: Wire) -> list[str]:
    """Relay all due rows, and return the keys of all records so far, in their order."""
    drain(service.relay("r"))
    return [record.key.decode() for record in wire.published if record.key is not None]


@dataclass
class Lost(Exception):
    """The connection to the outbox is gone."""


def lose_words(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every commit and rollback call of a half message fail."""

    def lost(*_: Any) -> None:
        raise OperationalError("UPDATE", {}, Lost())

    monkeypatch.setattr(service.app.half_messages._store, "resolve", lost)


# --- by commit and rollback calls -----------------------------------------------------------------


def test_nothing_is_published_before_the_transaction_commits(orders, ledger, wire):
    with orders.app.half(PLACED, {"n": 1}, key="a") as tx, ledger.begin() as local:
        enter(local)
        assert published(orders, wire) == []
        assert status(orders, tx.id) == "HALF"
    assert status(orders, tx.id) == "INIT"
    assert published(orders, wire) == ["a"]


def test_local_transaction_needs_a_stored_half_message(orders, ledger):
    orders.execute("ALTER TABLE shield_outbox RENAME TO away")
    with (
        pytest.raises(SchemaMismatch, match="shield_outbox does not exist"),
        orders.app.half(PLACED),
        ledger.begin() as local,
    ):
        enter(local)
    assert entries(ledger) == []


@pytest.mark.parametrize(
    ("event_type", "parts", "error"),
    [
        ("orders.unknown", {}, UnknownEventType),
        (PLACED, {"delay": -HOUR}, EventRefused),
        (PLACED, {"immunity": -HOUR}, EventRefused),
        (PLACED, {"key": "\x00"}, EventRefused),
    ],
)
def test_invalid_message_is_refused_before_the_block(orders, event_type, parts, error):
    with pytest.raises(error), orders.app.half(event_type, {}, **parts):
        pytest.fail("the block was entered")
    assert orders.outbox() == {}


def test_exception_leaves_the_outcome_to_a_check(orders, ledger, wire):
    @orders.app.checks(PLACED)
    def look(event: Event) -> LocalOutcome:
        return COMMIT if event.payload["what"] in entries(ledger) else ROLLBACK

    for what, commits in (("committed", True), ("failed", False)):
        with (
            suppress(ValueError),
            orders.app.half(PLACED, {"what": what}, key=what),
            ledger.connect() as local,
        ):
            enter(local, what)
            if commits:
                local.commit()
            raise ValueError("before or after the commit, who knows")
    assert orders.outbox() == {"HALF": 2}
    done = check(orders)
    assert (done.checked, done.committed, done.rolled_back) == (2, 1, 1)
    assert published(orders, wire) == ["committed"]


@pytest.mark.parametrize(
    ("says", "expected"),
    [("commit", "INIT"), ("rollback", "DISCARDED"), ("unknown", "HALF")],
)
@pytest.mark.parametrize("raises", [True, False])
def test_caller_may_set_the_outcome(orders, says, expected, raises):
    with suppress(ValueError), orders.app.half(PLACED) as tx:
        getattr(tx, says)()
        if raises:
            raise ValueError
    assert status(orders, tx.id) == expected


def test_exception_may_mean_rollback(orders):
    with (
        pytest.raises(LookupError),
        orders.app.half(PLACED, rollback_on=(LookupError,)) as tx,
    ):
        raise KeyError("out of stock")
    assert status(orders, tx.id) == "DISCARDED"


def test_message_may_be_resolved_by_its_id(orders):
    first, second = (orders.app.half_prepare(PLACED, key=key) for key in "ab")
    orders.app.half_commit(first)
    orders.app.half_rollback(second)
    assert (status(orders, first), status(orders, second)) == ("INIT", "DISCARDED")
    orders.app.half_commit(first)
    with pytest.raises(IllegalTransition, match="cannot COMMIT: it is DISCARDED"):
        orders.app.half_commit(second)
    with pytest.raises(IllegalTransition, match="there is no half message"):
        orders.app.half_rollback(UUID(int=1))


def test_messages_of_a_transaction_end_together_and_in_order(orders, wire):
    with orders.app.half(PLACED, key="k") as tx:
        tx.prepare("orders.paid", key="k")
        tx.prepare(PLACED, key="k")
    rows = orders.rows("SELECT event_id FROM shield_outbox WHERE status = 'INIT' ORDER BY seq")
    assert [event_id for (event_id,) in rows] == tx.ids
    with orders.app.half(PLACED) as tx:
        tx.prepare("orders.paid")
        tx.rollback()
    assert orders.outbox() == {"INIT": 3, "DISCARDED": 2}


def test_a_commit_call_that_contradicts_a_check_is_an_error(orders):
    @orders.app.checks(PLACED)
    def wrong(event: Event) -> LocalOutcome:
        return ROLLBACK

    with (
        pytest.raises(IllegalTransition, match="cannot COMMIT: it is DISCARDED"),
        orders.app.half(PLACED),
    ):
        check(orders)


def test_rejected_outcome_is_logged_with_its_own_message_alone(orders, caplog):
    with pytest.raises(IllegalTransition), orders.app.half(PLACED) as tx:  # noqa: PT012
        tx.prepare("orders.paid")
        first, second = tx.ids
        orders.app.half_rollback(second)
    (rejected,) = logged(caplog.records, "outcome_rejected")
    assert rejected["event_ids"] == [str(second)]
    assert (status(orders, first), status(orders, second)) == ("INIT", "DISCARDED")


def test_a_commit_call_after_all_checks_waits_for_the_operator(orders):
    with pytest.raises(IllegalTransition, match="waits for an operator"), orders.app.half(PLACED):
        let_time_run_out(orders)
    assert orders.outbox() == {"UNRESOLVED": 1}


def test_the_commit_wakes_the_relay(orders, monkeypatch):
    hints: list[int] = []
    monkeypatch.setattr(orders.app.half_messages, "_after_commit", lambda: hints.append(1))
    with orders.app.half(PLACED):
        assert hints == []
    assert hints == [1]
    with orders.app.half(PLACED) as tx:
        tx.rollback()
    assert hints == [1]


# --- lost commit calls and dead processes ---------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_lost_commit_call_is_repaired_by_the_check(orders, ledger, wire, monkeypatch, commits):
    orders.app.barrier(PLACED, engine=ledger)
    with monkeypatch.context() as broken:
        lose_words(orders, broken)
        with orders.app.half(PLACED, key="a") as tx, ledger.connect() as local:
            tx.guard(local)
            enter(local)
            if commits:
                local.commit()
            else:
                local.rollback()
                tx.rollback()
    assert status(orders, tx.id) == "HALF"
    check(orders)
    assert status(orders, tx.id) == ("INIT" if commits else "DISCARDED")
    assert published(orders, wire) == (["a"] if commits else [])


DIES = """
import os, signal, sys
from sqlalchemy import create_engine, text
from shieldtx import Settings, ShieldTx
app = ShieldTx(Settings(source="orders", database_url=sys.argv[1], shards=8, relay_wakeup=False))
ledger = create_engine(sys.argv[2])
app.declare("orders.placed")
app.barrier("orders.placed", engine=ledger)
with app.half("orders.placed", {}, key="a") as tx:
    with ledger.begin() as local:
        app.guard(local)
        local.execute(text("INSERT INTO entries VALUES ('done')"))
        if sys.argv[3] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("dies", ["before", "after"])
def test_the_barrier_has_the_outcome_of_a_killed_process(orders, ledger, wire, dies):
    orders.app.barrier(PLACED, engine=ledger)
    urls = [e.url.render_as_string(hide_password=False) for e in (orders.engine, ledger)]
    process = child_process.start(
        [sys.executable, "-c", DIES, *urls, dies],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said
    assert orders.outbox() == {"HALF": 1}
    check(orders)
    assert entries(ledger) == ([] if dies == "before" else ["done"])
    assert published(orders, wire) == ([] if dies == "before" else ["a"])


# --- checks ---------------------------------------------------------------------------------------


def test_message_after_all_checks_is_logged_for_an_operator(orders, wire, caplog):
    asked: list[int] = []

    @orders.app.checks(PLACED)
    def nobody_knows(event: Event) -> LocalOutcome:
        asked.append(1)
        return UNKNOWN

    event_id = orders.app.half_prepare(PLACED, {}, key="a")
    for _ in range(20):
        check(orders)
        orders.app.half_messages.parking().run_once()
    assert len(asked) == 15
    assert status(orders, event_id) == "UNRESOLVED"
    [alarm] = logged(caplog.records, "half_message_unresolved")
    assert alarm["event_id"] == str(event_id)
    assert published(orders, wire) == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (
            lambda: "COMMIT",
            (
                "the checker returned a value of type str, not a LocalOutcome: COMMIT, ROLLBACK, "
                "UNKNOWN"
            ),
        ),
        (lambda: sys.exit(1), "SystemExit: 1"),
    ],
)
def test_checker_without_an_outcome_leaves_the_message_half(orders, answer, reason):
    @orders.app.checks(PLACED)
    def broken(event: Event) -> Any:
        return answer()

    event_id = orders.app.half_prepare(PLACED)
    assert check(orders).unknown == 1
    assert status(orders, event_id) == "HALF"
    assert orders.rows("SELECT last_error FROM shield_outbox") == [(reason,)]


def test_check_is_counted_and_committed_before_its_checker_runs(orders):
    counted: list[Any] = []

    @orders.app.checks(PLACED)
    def look(event: Event) -> LocalOutcome:
        counted.extend(orders.rows("SELECT checks FROM shield_outbox"))
        return COMMIT

    orders.app.half_prepare(PLACED)
    check(orders)
    assert counted == [(1,)]


def test_a_checker_gets_the_event_with_its_payload(orders):
    seen: list[Event] = []

    @orders.app.checks(PLACED)
    def look(event: Event) -> LocalOutcome:
        seen.append(event)
        return COMMIT

    event_id = orders.app.half_prepare(PLACED, {"n": 1}, key="k", biz_key="b")
    check(orders)
    [event] = seen
    assert (event.id, event.payload, event.key, event.biz_key) == (event_id, {"n": 1}, "k", "b")


def test_slow_checker_has_a_deadline_and_blocks_no_other_type(make_service):
    service = make_service("orders", half_check_timeout=0.2, barrier_patience=0.1)
    free = threading.Event()
    try:
        for name in (PLACED, "orders.paid"):
            service.app.declare(name)

        @service.app.checks(PLACED)
        def hangs(event: Event) -> LocalOutcome:
            free.wait(30)
            return ROLLBACK

        @service.app.checks("orders.paid")
        def quick(event: Event) -> LocalOutcome:
            return COMMIT

        slow, other = service.app.half_prepare(PLACED), service.app.half_prepare("orders.paid")
        service.app.half_prepare(PLACED)
        let_time_pass(service)
        paid, placed = service.app.half_messages.check_backs()
        assert placed.run_once().unknown == 1, "the second one is given back"
        assert placed.run_once() == CheckBackResult(), "nobody else is asked while it hangs"
        assert paid.run_once().committed == 1
        counts = service.rows("SELECT checks FROM shield_outbox WHERE status = 'HALF' ORDER BY seq")
        assert counts == [(1,), (0,)]
        assert (status(service, slow), status(service, other)) == ("HALF", "INIT")
    finally:
        free.set()


def test_answer_after_the_deadline_is_ignored(make_service, eventually):
    service = make_service("orders", half_check_timeout=0.2, barrier_patience=0.1)
    service.app.declare(PLACED)
    free = threading.Event()

    @service.app.checks(PLACED)
    def late(event: Event) -> LocalOutcome:
        free.wait(30)
        return ROLLBACK

    event_id = service.app.half_prepare(PLACED)
    let_time_pass(service)
    [check_back] = service.app.half_messages.check_backs()
    assert check_back.run_once().unknown == 1
    free.set()
    eventually(lambda: check_back._free_threads() == 1, "the checker has come back")
    assert status(service, event_id) == "HALF"
    let_time_pass(service)
    assert check_back.run_once().rolled_back == 1


def test_an_answer_counts_only_while_the_message_is_half(orders):
    @orders.app.checks(PLACED)
    def overtaken(event: Event) -> LocalOutcome:
        orders.app.half_commit(event.id)
        return ROLLBACK

    event_id = orders.app.half_prepare(PLACED)
    done = check(orders)
    assert (done.late, done.rolled_back) == (1, 0)
    assert status(orders, event_id) == "INIT"


def test_stopping_worker_releases_its_checks(orders):
    asked: list[UUID] = []

    @orders.app.checks(PLACED)
    def look(event: Event) -> LocalOutcome:
        asked.append(event.id)
        return COMMIT

    for _ in range(3):
        orders.app.half_prepare(PLACED)
    let_time_pass(orders)
    [check_back] = orders.app.half_messages.check_backs(stopping=lambda: len(asked) == 1)
    assert check_back.run_once().checked == 1
    [again] = orders.app.half_messages.check_backs()
    assert again.run_once().committed == 2


def test_many_processes_make_each_check_once(orders):
    asked: list[UUID] = []

    @orders.app.checks(PLACED)
    def look(event: Event) -> LocalOutcome:
        asked.append(event.id)
        return COMMIT

    prepared = [orders.app.half_prepare(PLACED) for _ in range(60)]
    let_time_pass(orders)
    backs: list[CheckBack] = []
    for _ in range(4):
        [back] = orders.app.half_messages.check_backs()
        back._batch_size = 7
        backs.append(back)

    def work(back: CheckBack) -> None:
        while back.run_once().checked:
            pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, backs))
    assert sorted(asked) == sorted(prepared)
    assert orders.outbox() == {"INIT": 60}


KILLS = """
import os, signal, sys
from shieldtx import LocalOutcome, Settings, ShieldTx
app = ShieldTx(Settings(
    source="orders", database_url=sys.argv[1], shards=8, relay_wakeup=False, half_checks=3
))
app.declare("orders.placed")

@app.checks("orders.placed")
def look(event):
    if event.key == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return LocalOutcome.COMMIT

[check_back] = app.half_messages.check_backs()
while check_back.run_once().more:
    pass
"""


def test_message_that_kills_checkers_costs_others_one_check(make_service):
    service = make_service("orders", half_checks=3)
    service.app.declare(PLACED)
    for key in ("a", "poison", "b"):
        service.app.half_prepare(PLACED, key=key)
    url = service.engine.url.render_as_string(hide_password=False)
    ends = []
    for _ in range(4):
        # In the order in which they were prepared.
        service.execute("UPDATE shield_outbox SET check_at = created_at WHERE status = 'HALF'")
        process = child_process.start(
            [sys.executable, "-c", KILLS, url],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        ends.append(process.wait(60))
    assert ends == [-signal.SIGKILL] * 3 + [0]
    service.execute("UPDATE shield_outbox SET check_at = created_at WHERE status = 'HALF'")
    assert service.app.half_messages.parking().run_once().parked == 1
    rows = service.rows("SELECT key, status, checks FROM shield_outbox ORDER BY event_id")
    assert rows == [("a", "INIT", 2), ("poison", "UNRESOLVED", 3), ("b", "INIT", 2)]


def test_type_has_one_source_of_outcomes(orders):
    orders.app.barrier(PLACED)
    with pytest.raises(ConfigurationError, match="has a second source of outcomes"):
        orders.app.checks(PLACED)(lambda event: COMMIT)


# --- the barrier ----------------------------------------------------------------------------------


def waiting_for_a_transaction(engine: Engine) -> bool:
    with engine.connect() as connection:
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND wait_event = 'transactionid'"
        )
        return connection.scalar(text(waits)) == 1


@pytest.mark.parametrize("commits", [True, False])
def test_check_waits_for_a_local_transaction_in_flight(make_service, ledger, eventually, commits):
    service = make_service("orders", barrier_patience=9.0)
    service.app.declare(PLACED)
    service.app.barrier(PLACED, engine=ledger)
    with suppress(IllegalTransition), service.app.half(PLACED) as tx, ledger.connect() as local:
        tx.guard(local)
        enter(local)
        with ThreadPoolExecutor(1) as thread:
            checked = thread.submit(check, service)
            eventually(lambda: waiting_for_a_transaction(ledger), "the check waits for its end")
            assert not checked.done()
            (local.commit if commits else local.rollback)()
            done = checked.result(10)
        assert (done.committed, done.rolled_back) == ((1, 0) if commits else (0, 1))
        assert status(service, tx.id) == ("INIT" if commits else "DISCARDED")
        (tx.commit if commits else tx.rollback)()


def test_a_check_does_not_wait_for_ever(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with orders.app.half(PLACED) as tx, ledger.begin() as local:
        tx.guard(local)
        enter(local)
        done = check(orders)
        assert done.unknown == 1
        assert status(orders, tx.id) == "HALF"
    assert status(orders, tx.id) == "INIT"


def test_a_late_local_transaction_fails_and_leaves_nothing(orders, ledger, wire):
    orders.app.barrier(PLACED, engine=ledger)
    with pytest.raises(LateTransaction), orders.app.half(PLACED, key="a") as tx:  # noqa: PT012
        assert check(orders).rolled_back == 1
        with Session(ledger) as session, session.begin():
            enter(session)
            tx.guard(session)
    assert entries(ledger) == []
    assert status(orders, tx.id) == "DISCARDED"
    assert published(orders, wire) == []


def test_the_barrier_may_be_in_the_outboxs_own_database(orders):
    orders.app.barrier(PLACED)
    with pytest.raises(ValueError, match="after"), orders.app.half(PLACED) as tx:  # noqa: PT012
        with orders.transaction() as session:
            tx.guard(session)
        raise ValueError("after the commit")
    assert check(orders).committed == 1


def test_a_local_transaction_without_a_barrier_fails_at_once(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with (
        pytest.raises(TransactionRefused, match="committed without its barrier"),
        orders.app.half(PLACED) as tx,
        ledger.begin() as local,
    ):
        enter(local)
    assert status(orders, tx.id) == "INIT"


def test_guard_needs_a_message_a_barrier_and_no_savepoint(orders, ledger):
    with ledger.connect() as local:
        with pytest.raises(TransactionRefused, match="no half message around"):
            orders.app.guard(local)
        with (
            pytest.raises(ConfigurationError, match=r"declare `shield.barrier"),
            orders.app.half("orders.paid") as tx,
        ):
            tx.guard(local)
        orders.app.barrier(PLACED, engine=ledger)
        local.begin_nested()
        with (
            pytest.raises(TransactionRefused, match="savepoint"),
            orders.app.half(PLACED) as tx,
        ):
            tx.guard(local)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_driver_rollback_of_async_session_discards_the_message(orders, ledger, driver):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url.set(drivername=f"postgresql+{driver}"))
        async with orders.app.half(PLACED) as tx, AsyncSession(engine) as session, session.begin():
            tx.guard(session)
            await session.execute(text("INSERT INTO entries VALUES ('a')"))
            raw = (await (await session.connection()).get_raw_connection()).driver_connection
            await (raw.rollback() if driver == "psycopg" else raw.execute("ROLLBACK"))
        await engine.dispose()

    with pytest.raises(TransactionRefused):
        asyncio.run(main())
    assert entries(ledger) == []
    check(orders)
    assert orders.outbox() == {"DISCARDED": 1}


def test_an_asynchronous_session_is_guarded_with_its_commit(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with (
                orders.app.half(PLACED) as tx,
                AsyncSession(engine) as session,
                session.begin(),
            ):
                orders.app.guard(session)
                async with session.begin_nested():
                    await session.execute(text("INSERT INTO entries VALUES ('a')"))
            assert status(orders, tx.id) == "INIT"

            with pytest.raises(LateTransaction):  # noqa: PT012
                async with orders.app.half(PLACED) as tx:
                    await asyncio.to_thread(check, orders)
                    async with AsyncSession(engine) as session, session.begin():
                        tx.guard(session)
                        await session.execute(text("INSERT INTO entries VALUES ('late')"))
            assert status(orders, tx.id) == "DISCARDED"

            async with orders.app.half(PLACED) as tx:
                async with AsyncSession(engine) as session, session.begin():
                    await session.run_sync(tx.guard)
                tx.unknown()
            await asyncio.to_thread(check, orders)
            assert status(orders, tx.id) == "INIT"
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert entries(ledger) == ["a"]


async def leave_a_savepoint(engine: AsyncEngine, guard: Guard) -> None:
    async with AsyncSession(engine) as session, session.begin():
        guard(session)
        await session.begin_nested()
        await session.execute(text("INSERT INTO entries VALUES ('debit')"))


async def commit_the_connection(engine: AsyncEngine, guard: Guard) -> None:
    async with AsyncSession(engine) as session:
        guard(session)
        await session.execute(text("INSERT INTO entries VALUES ('debit')"))
        await (await session.connection()).commit()


async def release_a_savepoint_in_one_that_rolls_back(engine: AsyncEngine, guard: Guard) -> None:
    async with AsyncSession(engine) as session, session.begin():
        guard(session)
        outer = await session.begin_nested()
        async with session.begin_nested():
            await session.execute(text("INSERT INTO entries VALUES ('undone')"))
        await outer.rollback()
        await session.execute(text("INSERT INTO entries VALUES ('debit')"))


async def guard_late(engine: AsyncEngine, guard: Guard) -> None:
    async with AsyncSession(engine) as session:
        await session.execute(text("INSERT INTO entries VALUES ('debit')"))
        guard(session)
        await (await session.connection()).commit()


@pytest.mark.parametrize(
    "local",
    [
        leave_a_savepoint,
        release_a_savepoint_in_one_that_rolls_back,
        commit_the_connection,
        guard_late,
    ],
)
def test_asynchronous_session_is_guarded_for_each_way_to_commit(orders, ledger, local):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with orders.app.half(PLACED) as tx:
                await local(engine, tx.guard)
            assert status(orders, tx.id) == "INIT"
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert entries(ledger) == ["debit"]


def test_commit_refused_by_the_barrier_leaves_nothing(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url, pool_size=1, max_overflow=0)
        try:
            with pytest.raises(LateTransaction):  # noqa: PT012
                async with orders.app.half(PLACED) as tx:
                    await asyncio.to_thread(check, orders)
                    await commit_the_connection(engine, tx.guard)
            async with engine.begin() as connection:
                await connection.execute(text("INSERT INTO entries VALUES ('next')"))
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert entries(ledger) == ["next"]
    assert orders.outbox() == {"DISCARDED": 1}


def test_async_session_of_connection_is_guarded_by_run_sync_only(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with orders.app.half(PLACED) as tx, engine.connect() as connection:
                session = AsyncSession(bind=connection)
                with pytest.raises(TransactionRefused, match=r"run_sync\(tx.guard\)"):
                    tx.guard(session)
                await session.run_sync(tx.guard)
                await session.execute(text("INSERT INTO entries VALUES ('debit')"))
                await connection.commit()
            assert status(orders, tx.id) == "INIT"
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert entries(ledger) == ["debit"]


def test_guard_in_a_savepoint_unknown_to_the_session_is_refused(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with Session(ledger) as local, orders.app.half(PLACED) as tx:
        local.connection().begin_nested()
        with pytest.raises(TransactionRefused, match="savepoint"):
            tx.guard(local)
        tx.rollback()


@pytest.mark.parametrize("is_of_connection", [False, True])
@pytest.mark.parametrize("is_by_hand", [False, True])
def test_an_asynchronous_session_is_not_guarded_in_a_savepoint(
    orders, ledger, is_of_connection, is_by_hand
):
    orders.app.barrier(PLACED, engine=ledger)
    by_hand = orders.app.half_prepare(PLACED)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with orders.app.half(PLACED) as tx, AsyncSession(engine) as session:
                ids = [by_hand] if is_by_hand else []
                if is_of_connection:
                    await (await session.connection()).begin_nested()
                else:
                    await session.begin_nested()
                with pytest.raises(TransactionRefused, match="savepoint"):
                    orders.app.guard(session, *ids)
                await session.rollback()
                tx.rollback()
        finally:
            await engine.dispose()

    asyncio.run(main())
    with pytest.raises(TransactionRefused, match="did not commit"):
        orders.app.half_commit(by_hand)
    assert orders.outbox() == {"DISCARDED": 2}


def test_an_asynchronous_session_in_autocommit_changes_nothing(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url, isolation_level="AUTOCOMMIT")
        try:
            async with orders.app.half(PLACED) as tx, AsyncSession(engine) as session:
                tx.guard(session)
                with pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
                    await session.execute(text("INSERT INTO entries VALUES ('debit')"))
                await session.rollback()
                await session.execute(text("SELECT 1"))
                with pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
                    tx.guard(session)
                tx.rollback()
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert entries(ledger) == []


def test_guard_in_a_savepoint_of_a_joined_session_is_refused(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with ledger.connect() as connection, orders.app.half(PLACED) as tx:
        connection.begin()
        local = Session(connection, join_transaction_mode="rollback_only")
        local.begin_nested()
        with pytest.raises(TransactionRefused, match="savepoint"):
            tx.guard(local)
        tx.rollback()


def test_asynchronous_session_that_rolls_back_has_no_guard(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with orders.app.half(PLACED) as tx, AsyncSession(engine) as session:
                tx.guard(session)
                await session.rollback()
                await session.execute(text("INSERT INTO entries VALUES ('other')"))
                await session.commit()
                tx.rollback()
        finally:
            await engine.dispose()

    asyncio.run(main())
    with ledger.connect() as connection:
        assert list(connection.scalars(text("SELECT committed FROM shield_barrier"))) == [False]


def test_unchanged_asynchronous_session_counts_as_committed(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with orders.app.half(PLACED) as tx, AsyncSession(engine) as session:
                tx.guard(session)
                await session.commit()
            assert status(orders, tx.id) == "INIT"
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_next_transaction_of_an_async_session_is_not_the_guarded(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with AsyncSession(engine) as session:
                with pytest.raises(TransactionRefused, match="did not commit"):  # noqa: PT012
                    async with orders.app.half(PLACED) as tx:
                        tx.guard(session)
                        await session.rollback()
                        await session.execute(text("INSERT INTO entries VALUES ('next')"))
                assert status(orders, tx.id) == "DISCARDED"
                await session.commit()
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert entries(ledger) == ["next"]


# --- an outcome that the barrier contradicts ------------------------------------------------------


def swallow_an_error(local: Connection | Session) -> None:
    """Swallow a database error, as code written for databases that continue after an error does."""
    local.execute(text("INSERT INTO entries VALUES ('gone')"))
    with suppress(DBAPIError):
        local.execute(text("SELECT 1 / 0"))


def test_commit_that_silently_rolled_back_raises(orders, ledger, wire):
    orders.app.barrier(PLACED, engine=ledger)
    with (  # noqa: PT012
        pytest.raises(TransactionRefused, match=r"did not commit.*swallowed"),
        orders.app.half(PLACED) as tx,
        ledger.begin() as local,
    ):
        tx.guard(local)
        swallow_an_error(local)
    assert status(orders, tx.id) == "DISCARDED"
    assert (entries(ledger), published(orders, wire)) == ([], [])


def test_a_decorated_method_that_rolled_back_silently_raises(orders, ledger, wire):
    orders.app.barrier(PLACED, engine=ledger)

    @orders.app.transactional(PLACED, payload="number")
    def place(number: int) -> None:
        with Session(ledger) as local, local.begin():
            orders.app.guard(local)
            swallow_an_error(local)

    with pytest.raises(TransactionRefused, match="did not commit"):
        place(1)
    assert orders.outbox() == {"DISCARDED": 1}
    assert published(orders, wire) == []


def test_asynchronous_session_that_silently_rolled_back_raises(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)

    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with orders.app.half(PLACED) as tx, AsyncSession(engine) as session:
                await session.run_sync(tx.guard)
                with suppress(DBAPIError):
                    await session.execute(text("SELECT 1 / 0"))
                await session.commit()
        finally:
            await engine.dispose()

    with pytest.raises(TransactionRefused, match="did not commit"):
        asyncio.run(main())
    assert orders.outbox() == {"DISCARDED": 1}


def test_commit_call_is_accepted_if_the_barrier_committed(orders, ledger, wire):
    orders.app.barrier(PLACED, engine=ledger)
    first, second = (orders.app.half_prepare(PLACED, key=key) for key in "ab")
    with ledger.begin() as local:
        orders.app.guard(local, first)
        enter(local)
    with ledger.begin() as local:
        orders.app.guard(local, second)
        swallow_an_error(local)

    with pytest.raises(TransactionRefused, match=rf"{second} did not commit"):
        orders.app.half_commit(first, second)

    assert (status(orders, first), status(orders, second)) == ("INIT", "DISCARDED")
    orders.app.half_commit(first)


def test_commit_call_during_the_transaction_is_refused(make_service, ledger):
    service = make_service("orders", barrier_patience=0.1)
    service.app.declare(PLACED)
    service.app.barrier(PLACED, engine=ledger)
    event_id = service.app.half_prepare(PLACED)
    with ledger.begin() as local:
        service.app.guard(local, event_id)
        enter(local)
        with pytest.raises(TransactionRefused, match="commit it first"):
            service.app.half_commit(event_id)
        assert status(service, event_id) == "HALF"
    service.app.half_commit(event_id)
    assert status(service, event_id) == "INIT"


def test_guard_by_id_needs_an_open_message(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    other = orders.app.half_prepare("orders.paid")
    with ledger.connect() as local:
        for event_id in (other, uuid4()):
            with pytest.raises(TransactionRefused, match="has no barrier"):
                orders.app.guard(local, event_id)


def test_block_that_ends_before_its_transaction_awaits_a_check(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with ledger.begin() as local, orders.app.half(PLACED) as tx:
        tx.guard(local)
        enter(local)
    assert status(orders, tx.id) == "HALF"
    assert check(orders).committed == 1


def test_second_try_without_guard_discards_the_message(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with (  # noqa: PT012
        pytest.raises(TransactionRefused, match=r"did not commit.*was not guarded"),
        orders.app.half(PLACED) as tx,
    ):
        with suppress(ZeroDivisionError), ledger.begin() as local:
            tx.guard(local)
            raise ZeroDivisionError
        with ledger.begin() as local:
            enter(local)
    assert (status(orders, tx.id), entries(ledger)) == ("DISCARDED", ["done"])


def swallows_what_left_the_block(ledger: Engine, guard: Guard) -> None:
    with suppress(DBAPIError), Session(ledger) as local, local.begin():
        guard(local)
        enter(local, "gone")
        local.execute(text("SELECT 1 / 0"))


def rolls_back(ledger: Engine, guard: Guard) -> None:
    with Session(ledger) as local:
        guard(local)
        enter(local, "gone")
        local.rollback()


def forgets_to_commit(ledger: Engine, guard: Guard) -> None:
    with Session(ledger) as local:
        guard(local)
        enter(local, "gone")


ROLLED_BACK = pytest.mark.parametrize(
    "work", [swallows_what_left_the_block, rolls_back, forgets_to_commit]
)


@ROLLED_BACK
def test_block_without_error_after_a_rollback_raises(orders, ledger, wire, work):
    orders.app.barrier(PLACED, engine=ledger)
    with (
        pytest.raises(TransactionRefused, match="did not commit, so that the message is discarded"),
        orders.app.half(PLACED) as tx,
    ):
        work(ledger, tx.guard)
    assert status(orders, tx.id) == "DISCARDED"
    assert (entries(ledger), published(orders, wire)) == ([], [])


@ROLLED_BACK
def test_method_that_returns_after_a_rollback_raises(orders, ledger, wire, work):
    orders.app.barrier(PLACED, engine=ledger)

    @orders.app.transactional(PLACED, payload="number")
    def place(number: int) -> str:
        work(ledger, orders.app.guard)
        return "insufficient"

    with pytest.raises(TransactionRefused, match=r"returning LocalOutcome\.ROLLBACK"):
        place(1)
    assert orders.outbox() == {"DISCARDED": 1}
    assert (entries(ledger), published(orders, wire)) == ([], [])


def test_message_prepared_after_the_guard_ends_as_the_guarded(orders, ledger, wire):
    orders.app.barrier(PLACED, engine=ledger)
    with (  # noqa: PT012
        pytest.raises(TransactionRefused, match="did not commit"),
        orders.app.half(PLACED) as tx,
        ledger.begin() as local,
    ):
        tx.guard(local)
        tx.prepare(PLACED)
        swallow_an_error(local)
    assert orders.outbox() == {"DISCARDED": 2}
    with (  # noqa: PT012
        pytest.raises(TransactionRefused, match="committed without its barrier") as raised,
        orders.app.half(PLACED) as tx,
        ledger.begin() as local,
    ):
        tx.guard(local)
        late = tx.prepare(PLACED)
    assert str(late) in str(raised.value)
    assert str(tx.id) not in str(raised.value)
    assert orders.outbox() == {"DISCARDED": 2, "INIT": 2}


def test_a_second_guarded_try_commits(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with orders.app.half(PLACED) as tx:
        for fails in (True, False):
            with suppress(ZeroDivisionError), Session(ledger) as local, local.begin():
                tx.guard(local)
                enter(local)
                assert not fails or 1 / 0
    assert (status(orders, tx.id), entries(ledger)) == ("INIT", ["done"])


@pytest.mark.parametrize("commits", [True, False])
def test_next_transaction_of_a_connection_is_not_the_guarded(orders, ledger, commits):
    orders.app.barrier(PLACED, engine=ledger)
    with ledger.connect() as local:
        with orders.app.half(PLACED) as tx:
            tx.guard(local)
            enter(local)
            if commits:
                local.commit()
            else:
                local.rollback()
                tx.rollback()
            local.execute(text("SELECT 1"))
            assert local.in_transaction()
        assert status(orders, tx.id) == ("INIT" if commits else "DISCARDED")


def test_error_meaning_rollback_keeps_a_committed_message(orders, ledger, caplog):
    orders.app.barrier(PLACED, engine=ledger)
    with (  # noqa: PT012
        pytest.raises(ValueError, match="no mail"),
        orders.app.half(PLACED, rollback_on=(ValueError,)) as tx,
    ):
        with ledger.begin() as local:
            tx.guard(local)
            enter(local)
        raise ValueError("no mail")
    assert status(orders, tx.id) == "INIT"
    [told] = [fields_of(r) for r in caplog.records if r.levelname == "ERROR"]
    assert told["action"] == "barrier_contradiction"
    assert f"half message {tx.id} committed, so that the message is sent" in str(told["error"])


@pytest.mark.parametrize("is_guarded", [True, False])
def test_rollback_call_shuts_the_local_transaction_out(orders, ledger, is_guarded):
    orders.app.barrier(PLACED, engine=ledger)
    with orders.app.half(PLACED) as tx, ledger.connect() as local:
        if is_guarded:
            tx.guard(local)
            local.rollback()
        tx.rollback()
    assert status(orders, tx.id) == "DISCARDED"
    with pytest.raises(LateTransaction), ledger.begin() as local:
        orders.app.half_messages.messages.barrier_of(PLACED).enter(local, [tx.id])


def test_rollback_call_after_a_commit_raises_and_sends(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with (  # noqa: PT012
        pytest.raises(TransactionRefused, match="committed, so that the message is sent"),
        orders.app.half(PLACED) as tx,
    ):
        with ledger.begin() as local:
            orders.app.guard(local, tx.id)
        tx.rollback()
    assert status(orders, tx.id) == "INIT"


def test_rollback_call_of_an_open_transaction_awaits_a_check(orders, ledger, caplog):
    orders.app.barrier(PLACED, engine=ledger)
    with ledger.begin() as local:
        with orders.app.half(PLACED) as tx:
            tx.guard(local)
            tx.rollback()
        assert status(orders, tx.id) == "HALF"
    assert logged(caplog.records, "outcome_unknown") == [{"event_ids": [str(tx.id)]}]
    assert check(orders).committed == 1


def test_rollback_call_is_accepted_if_the_barrier_has_no_commit(make_service, ledger):
    service = make_service("orders", barrier_patience=0.1)
    service.app.declare(PLACED)
    service.app.barrier(PLACED, engine=ledger)
    absent, committed, in_flight = (service.app.half_prepare(PLACED) for _ in range(3))
    with ledger.begin() as local:
        service.app.guard(local, committed)
    with ledger.begin() as local:
        service.app.guard(local, in_flight)
        with pytest.raises(TransactionRefused) as raised:
            service.app.half_rollback(absent, committed, in_flight)
        assert f"{committed} committed, so that the message is sent" in str(raised.value)
        assert f"{in_flight} is not known to have rolled back" in str(raised.value)
        assert str(absent) not in str(raised.value)
    ends = [status(service, event_id) for event_id in (absent, committed, in_flight)]
    assert ends == ["DISCARDED", "INIT", "HALF"]
    assert check(service).committed == 1


def test_two_open_local_transactions_of_one_block_are_refused(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with (
        suppress(IllegalTransition),
        orders.app.half(PLACED) as tx,
        ledger.connect() as one,
        Session(ledger) as other,
    ):
        tx.guard(one)
        with pytest.raises(TransactionRefused, match="still open"):
            tx.guard(other)
        tx.rollback()


@pytest.mark.parametrize("elsewhere", [True, False])
def test_operators_rollback_shuts_the_local_transaction_out(orders, ledger, elsewhere):
    orders.app.barrier(PLACED, engine=ledger if elsewhere else None)
    with pytest.raises(LateTransaction), orders.app.half(PLACED) as tx:  # noqa: PT012
        decide(orders, tx.id, LocalOutcome.ROLLBACK)
        with (ledger if elsewhere else orders.engine).begin() as local:
            tx.guard(local)
    assert status(orders, tx.id) == "DISCARDED"


def test_operators_decision_against_the_barrier_is_refused(make_service, ledger):
    service = make_service("orders", barrier_patience=0.1)
    service.app.declare(PLACED)
    service.app.barrier(PLACED, engine=ledger)
    committed, rolled_back, in_flight = (service.app.half_prepare(PLACED) for _ in range(3))
    with ledger.begin() as local:
        service.app.guard(local, committed)
    with ledger.begin() as local:
        service.app.guard(local, in_flight)
        for event_id, outcome, problem in (
            (committed, LocalOutcome.ROLLBACK, "ended with COMMIT: `shieldtx half commit`"),
            (rolled_back, LocalOutcome.COMMIT, "has no committed local transaction"),
            (in_flight, LocalOutcome.COMMIT, "has no committed local transaction"),
            (in_flight, LocalOutcome.ROLLBACK, "in flight"),
        ):
            with pytest.raises(IllegalTransition, match=problem):
                decide(service, event_id, outcome)
    assert service.outbox() == {"HALF": 3}


def test_refused_commit_of_an_operator_keeps_the_barrier_open(orders, ledger):
    orders.app.barrier(PLACED, engine=ledger)
    with orders.app.half(PLACED) as tx:
        with pytest.raises(IllegalTransition, match="it has not come"):
            decide(orders, tx.id, LocalOutcome.COMMIT)
        with ledger.begin() as local:
            tx.guard(local)
            enter(local)
    assert (status(orders, tx.id), entries(ledger)) == ("INIT", ["done"])


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_operator_decides_after_the_barrier_row_is_purged(
    orders, ledger, monkeypatch, caplog, outcome
):
    orders.app.barrier(PLACED, engine=ledger)
    event_id = orders.app.half_prepare(PLACED)
    with ledger.begin() as local:
        orders.app.guard(local, event_id)
    with ledger.begin() as purge:
        purge.execute(text("DELETE FROM shield_barrier"))
    later = time.time() + orders.app.settings.retention_barrier.total_seconds()
    monkeypatch.setattr(half_message_admin, "unix_time", lambda: later)
    decide(orders, event_id, outcome)
    assert status(orders, event_id) == ("INIT" if outcome is COMMIT else "DISCARDED")
    forgotten = logged(caplog.records, "barrier_forgotten")
    assert [each["event_id"] for each in forgotten] == [str(event_id)]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_late_outcome_after_the_barrier_purge_is_refused(orders, ledger, monkeypatch, outcome):
    orders.app.barrier(PLACED, engine=ledger)
    event_id = orders.app.half_prepare(PLACED)
    with ledger.begin() as local:
        orders.app.guard(local, event_id)
    with ledger.begin() as purge:
        purge.execute(text("DELETE FROM shield_barrier"))
    later = time.time() + orders.app.settings.retention_barrier.total_seconds()
    monkeypatch.setattr(messages, "unix_time", lambda: later)
    end = orders.app.half_commit if outcome is COMMIT else orders.app.half_rollback
    with pytest.raises(TransactionRefused, match=r"SHIELDTX_RETENTION_BARRIER.*operator decides"):
        end(event_id)
    assert status(orders, event_id) == "HALF"


@pytest.mark.parametrize("guarded", [True, False])
def test_outcome_after_the_parking_is_refused(orders, ledger, guarded):
    orders.app.barrier(PLACED, engine=ledger)
    event_id = orders.app.half_prepare(PLACED)
    if guarded:
        with ledger.begin() as local:
            orders.app.guard(local, event_id)
    let_time_run_out(orders)
    for end in (orders.app.half_commit, orders.app.half_rollback):
        with pytest.raises(IllegalTransition, match="waits for an operator"):
            end(event_id)
    assert status(orders, event_id) == "UNRESOLVED"


def test_decision_against_the_barrier_is_refused_at_any_age(orders, ledger, monkeypatch):
    orders.app.barrier(PLACED, engine=ledger)
    event_id = orders.app.half_prepare(PLACED)
    with ledger.begin() as local:
        orders.app.guard(local, event_id)
    later = time.time() + orders.app.settings.retention_barrier.total_seconds()
    monkeypatch.setattr(half_message_admin, "unix_time", lambda: later)
    with pytest.raises(IllegalTransition, match="ended with COMMIT"):
        decide(orders, event_id, ROLLBACK)


def test_command_line_closes_the_barrier_without_the_application(orders):
    orders.app.barrier(PLACED)
    unknowing = ShieldTx(orders.app.settings, engine=orders.engine)
    with pytest.raises(LateTransaction), orders.app.half(PLACED) as tx:  # noqa: PT012
        admin = unknowing.stores.half_message_admin()
        admin.decide([admin.find(tx.id)], LocalOutcome.ROLLBACK, who="ann")
        with orders.transaction() as session:
            tx.guard(session)


def decide(service, event_id, outcome):
    admin = service.app.stores.half_message_admin()
    admin.decide([admin.find(event_id)], outcome, who="ann")


# --- order and delays -----------------------------------------------------------------------------


def test_a_key_is_in_the_order_of_its_commits(orders, wire):
    relay = orders.relay()

    def write(note: str) -> None:
        with orders.transaction() as session:
            orders.app.outbox.add(session, Event(type=PLACED, key="k", headers={"n": note}))

    first = orders.app.half_prepare(PLACED, key="k", headers={"n": "prepared first"})
    write("1")
    second = orders.app.half_prepare(PLACED, key="k", headers={"n": "prepared second"})
    drain(relay)
    write("2")
    orders.app.half_commit(second)
    write("3")
    drain(relay)
    orders.app.half_commit(first)
    write("4")
    drain(relay)
    told = [dict(record.headers)["n"].decode() for record in wire.published]
    assert told == ["1", "2", "prepared second", "3", "prepared first", "4"]


def test_a_chosen_delay_starts_at_the_commit(orders, wire):
    with orders.app.half(PLACED, key="a", delay=HOUR) as tx:
        orders.execute("UPDATE shield_outbox SET created_at = now() - interval '2 hours'")
    assert published(orders, wire) == []
    [(left,)] = orders.rows("SELECT due_at - now() FROM shield_outbox")
    assert HOUR - timedelta(minutes=1) < left <= HOUR
    with orders.transaction() as session:
        assert orders.app.outbox.cancel(session, tx.id), "as any other delayed event"
    assert orders.outbox() == {"DISCARDED": 1}


# --- the decorator --------------------------------------------------------------------------------


def test_returning_method_commits_and_raising_method_is_checked(orders, ledger, wire):
    class Orders:
        @orders.app.transactional(
            "orders.shipped", payload="order", key="id", rollback_on=(LookupError,)
        )
        def ship(self, order: dict[str, int], error: Exception | None = None) -> int:
            with ledger.begin() as local:
                orders.app.guard(local)
                enter(local, str(order["id"]))
                if error:
                    raise error
            return order["id"]

    orders.app.barrier("orders.shipped", engine=ledger)
    make_topics(orders)
    service = Orders()
    assert service.ship({"id": 1}) == 1
    with pytest.raises(ValueError, match="no"):
        service.ship({"id": 2}, error=ValueError("no"))
    with pytest.raises(LookupError):
        service.ship({"id": 3}, error=LookupError())
    assert orders.outbox() == {"INIT": 1, "HALF": 1, "DISCARDED": 1}
    assert check(orders).rolled_back == 1
    assert published(orders, wire) == ["1"]
    assert entries(ledger) == ["1"]


def test_method_may_return_its_outcome(orders):
    @orders.app.transactional(PLACED, payload=lambda arguments: {"n": arguments["n"]})
    def place(n: int, *, outcome: LocalOutcome = COMMIT) -> LocalOutcome:
        return outcome

    for outcome in (UNKNOWN, ROLLBACK, COMMIT):
        assert place(1, outcome=outcome) is outcome
    assert orders.outbox() == {"HALF": 1, "DISCARDED": 1, "INIT": 1}


def test_method_that_leaves_its_transaction_open_stays_half(orders, ledger):
    @orders.app.transactional(PLACED, payload="order")
    def place(session: Session, order: dict[str, int]) -> None:
        enter(session)

    with Session(ledger) as session:
        place(session, {"id": 1})
        assert orders.outbox() == {"HALF": 1}
        session.rollback()


def test_a_coroutine_method_is_a_local_transaction_too(orders):
    @orders.app.transactional(PLACED, payload="order", key="id")
    async def place(order: dict[str, int]) -> None:
        await asyncio.sleep(0)

    asyncio.run(place({"id": 7}))
    assert orders.rows("SELECT key, status FROM shield_outbox") == [("7", "INIT")]
