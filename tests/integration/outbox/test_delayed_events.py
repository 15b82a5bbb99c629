"""Delayed events in the transactions of a service, and concurrently with relays that claim them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx import BizKey, ChangeResult, Event, EventRefused
from shieldtx.app.workers import relay_process
from shieldtx.errors import TransactionRefused
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import claim as claim_sql
from shieldtx.store.statements import delayed_events as delayed_sql
from tests.conftest import Eventually
from tests.support.service import QUICK, Service, Wire, answer, assert_in_time, drain, make_topics

HOUR = timedelta(hours=1)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    service.app.declare("orders.unpaid", retry=QUICK)
    make_topics(service)
    return service


def write(service: Service, key: str = "k", *, biz_key: str | None = None, **due: Any) -> UUID:
    with service.transaction() as session:
        event = Event(type="orders.unpaid", key=key, biz_key=biz_key)
        return service.app.outbox.add(session, event, **due)


def sent(wire: Wire) -> list[UUID]:
    return [UUID(dict(record.headers)["ce_id"].decode()) for record in wire.published]


def status(service: Service, event_id: UUID) -> str:
    [(found,)] = service.rows("SELECT status FROM shield_outbox WHERE event_id = :i", i=event_id)
    return str(found)


def let_all_be_due(service: Service) -> None:
    """Shift all due times into the past; their order stays."""
    service.execute("UPDATE shield_outbox SET due_at = due_at - interval '1 year'")


# --- in the caller's transaction ------------------------------------------------------------------


def test_a_cancel_is_part_of_the_callers_transaction(service: Service) -> None:
    event_id = write(service, delay=HOUR)
    with Session(service.engine) as session:
        session.execute(text("INSERT INTO effects VALUES ('', 'paid', '')"))
        assert service.app.delayed.cancel(session, event_id)
        session.rollback()
    assert (status(service, event_id), service.effects()) == ("INIT", [])
    assert service.rows("SELECT * FROM shield_audit") == []

    with service.transaction() as session:
        session.execute(text("INSERT INTO effects VALUES ('', 'paid', '')"))
        assert service.app.delayed.cancel(session, event_id).result is ChangeResult.DONE
    assert (status(service, event_id), service.effects()) == ("DISCARDED", ["paid"])
    assert service.rows("SELECT who, action FROM shield_audit") == [("orders", "cancel")]


def test_the_short_form_of_cancelling_is_audited_too(service: Service) -> None:
    event_id = write(service, delay=HOUR)
    with service.transaction() as session:
        assert service.app.outbox.cancel(session, event_id) is True
        assert service.app.outbox.cancel(session, event_id) is False
    assert service.rows("SELECT who, action FROM shield_audit") == [("orders", "cancel")]


def test_event_of_same_transaction_can_be_moved_and_cancelled(service: Service) -> None:
    with service.transaction() as session:
        event = Event(type="orders.unpaid", biz_key="7")
        service.app.outbox.add(session, event, level=18)
        name = BizKey("orders.unpaid", "7")
        assert service.app.delayed.reschedule(session, name, delay=3 * HOUR, who="ann")
        [waits] = service.app.delayed.waiting(session)
        assert 2 * HOUR < waits.left <= 3 * HOUR
        assert service.app.delayed.cancel(session, name)
        assert service.app.delayed.waiting(session) == []
    assert service.rows("SELECT who, action FROM shield_audit ORDER BY id") == [
        ("ann", "reschedule"),
        ("orders", "cancel"),
    ]


def test_connection_can_reschedule_an_event(service: Service) -> None:
    event_id = write(service, delay=HOUR)
    with service.engine.begin() as connection:
        at = datetime(2199, 1, 1, tzinfo=UTC)
        assert service.app.delayed.reschedule(connection, event_id, at=at).due_at == at


def test_an_asynchronous_session_goes_through_run_sync(service: Service) -> None:
    event_id = write(service, delay=HOUR)
    delayed = service.app.delayed

    async def work() -> None:
        engine = create_async_engine(service.engine.url)
        async with AsyncSession(engine) as session, session.begin():
            for refused in (
                lambda: delayed.cancel(session, event_id),
                lambda: delayed.reschedule(session, event_id, delay=HOUR),
                lambda: delayed.waiting(session),
            ):
                with pytest.raises(TransactionRefused, match=r"session.run_sync\(shield.delayed"):
                    refused()
            [waits] = await session.run_sync(delayed.waiting)
            assert waits.event_id == event_id
            assert await session.run_sync(delayed.reschedule, event_id, delay=2 * HOUR)
            assert await session.run_sync(delayed.cancel, event_id)
        await engine.dispose()

    asyncio.run(work())
    assert status(service, event_id) == "DISCARDED"


@pytest.mark.parametrize(
    ("when", "field"),
    [({}, "delay"), ({"delay": HOUR, "level": 3}, "delay"), ({"level": 19}, "level")],
)
def test_new_time_that_is_ambiguous_or_invalid_is_refused(
    service: Service, when: Any, field: str
) -> None:
    event_id = write(service, delay=HOUR)
    with service.transaction() as session, pytest.raises(EventRefused) as caught:
        service.app.delayed.reschedule(session, event_id, **when)
    assert caught.value.field == field


# --- order ----------------------------------------------------------------------------------------


def test_a_delayed_event_blocks_no_other(service: Service, wire: Wire) -> None:
    write(service, delay=HOUR)
    at_once = [write(service), write(service)]
    drain(service.relay())
    assert sent(wire) == at_once


def test_several_relays_send_events_of_a_key_by_due_time(service: Service, wire: Wire) -> None:
    written = [
        (n, key, write(service, key, delay=HOUR + (97 * n % 31) * MINUTE))
        for n in range(30)
        for key in ("a", "b", "c", "d")
    ]
    let_all_be_due(service)
    relays = [service.app.build_relay(name) for name in ("one", "two", "three")]
    for _ in range(2):
        for relay in relays:
            relay.renew()
    assert all(relay.shards for relay in relays)
    with ThreadPoolExecutor() as threads:
        list(threads.map(drain, relays))
    order = sent(wire)
    assert sorted(order) == sorted(event_id for _, _, event_id in written)
    for key in ("a", "b", "c", "d"):
        by_due = sorted((97 * n % 31, event_id) for n, of, event_id in written if of == key)
        mine = {event_id for _, event_id in by_due}
        assert [e for e in order if e in mine] == [event_id for _, event_id in by_due]


def test_order_by_due_time_survives_small_batches_and_takeovers(
    make_service: Callable[..., Service], wire: Wire
) -> None:
    service = make_service("orders", relay_batch_size=8)
    service.app.declare("orders.unpaid")
    make_topics(service)
    ids = [write(service, delay=HOUR - n * MINUTE) for n in range(20)]
    let_all_be_due(service)
    first = service.relay("first")
    wire.fate = lambda _: answer(DeliveryOutcome.UNCONFIRMED) if len(wire.published) > 6 else None
    while len(wire.published) <= 6:
        first.run_once()
    first.close()
    wire.fate = lambda _: None
    drain(service.relay("second"))
    assert list(dict.fromkeys(sent(wire))) == ids[::-1]


def test_refused_delayed_event_does_not_block_its_key(service: Service, wire: Wire) -> None:
    refused, following = (write(service, delay=HOUR + n * SECOND) for n in range(2))
    let_all_be_due(service)
    wire.fate = lambda record: _refuse(record, refused)
    relay = service.relay()
    relay.run_once()
    wire.fate = lambda _: None
    drain(relay)
    assert sent(wire) == [following, refused]


def _refuse(record: Record, event_id: UUID) -> Any:
    is_it = dict(record.headers)["ce_id"] == str(event_id).encode()
    return answer(DeliveryOutcome.REFUSED) if is_it else None


# --- a change against a claim ---------------------------------------------------------------------


def test_event_that_becomes_due_during_its_cancel_is_skipped(
    service: Service, wire: Wire, eventually: Eventually
) -> None:
    event_id = write(service, delay=2 * SECOND)
    other = write(service)
    relay = service.relay()
    with service.transaction() as session:
        assert service.app.delayed.cancel(session, event_id)
        eventually(lambda: is_due(service, event_id), "it would be due")
        drain(relay)
    drain(relay)
    assert sent(wire) == [other]
    assert status(service, event_id) == "DISCARDED"


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
def test_refused_change_leaves_the_row_unlocked(service: Service, wire: Wire, change: str) -> None:
    """The open transaction of the caller does not block the relay."""
    event_id = write(service)
    when = {"delay": HOUR} if change == "reschedule" else {}
    with Session(service.engine) as session, session.begin():
        session.execute(text("INSERT INTO effects VALUES ('', 'paid', '')"))
        changed = getattr(service.app.delayed, change)(session, event_id, **when)
        assert changed.result is ChangeResult.NOT_DELAYED
        # The caller's transaction is still open.
        with service.engine.connect() as other:
            other.execute(text("SELECT event_id FROM shield_outbox FOR UPDATE NOWAIT")).all()
        drain(service.relay("r"))
        assert sent(wire) == [event_id]
    assert service.effects() == ["paid"]


def test_event_is_sent_after_a_cancel_that_is_rolled_back(
    service: Service, wire: Wire, eventually: Eventually
) -> None:
    event_id = write(service, delay=2 * SECOND)
    relay = service.relay()
    with Session(service.engine) as session:
        assert service.app.delayed.cancel(session, event_id)
        eventually(lambda: is_due(service, event_id), "it would be due")
        drain(relay)
        assert sent(wire) == []
    drain(relay)
    assert sent(wire) == [event_id]


def is_due(service: Service, event_id: UUID) -> bool:
    due = "SELECT due_at <= now() FROM shield_outbox WHERE event_id = :i"
    return service.rows(due, i=event_id) == [(True,)]


def test_either_a_cancel_or_a_claim_wins(
    service: Service, wire: Wire, eventually: Eventually
) -> None:
    relay = service.relay()
    results: dict[UUID, ChangeResult] = {}
    stop = threading.Event()

    def keep_relaying() -> None:
        while not stop.is_set():
            relay.run_once()

    delay = timedelta(milliseconds=30)

    def race() -> bool:
        """Cancel an event at about its due time, on a busy machine too."""
        nonlocal delay
        event_id = write(service, f"k{len(results) % 5}", delay=delay)
        time.sleep(random.uniform(0.015, 0.045))
        with service.transaction() as session:
            results[event_id] = service.app.delayed.cancel(session, event_id).result
        delay *= 0.8 if results[event_id] is ChangeResult.DONE else 1.25
        lost = sum(result is not ChangeResult.DONE for result in results.values())
        return min(lost, len(results) - lost) >= 20

    with ThreadPoolExecutor() as threads:
        relaying = threads.submit(keep_relaying)
        try:
            eventually(race, "each has won twenty times", within=60)
        finally:
            stop.set()
            relaying.result()
    drain(relay)
    cancelled = {event_id for event_id, result in results.items() if result is ChangeResult.DONE}
    assert sorted(sent(wire)) == sorted(results.keys() - cancelled)
    assert set(results.values()) <= {
        *(ChangeResult.DONE, ChangeResult.DUE, ChangeResult.CLAIMED, ChangeResult.PUBLISHED),
    }
    assert {status(service, event_id) for event_id in cancelled} == {"DISCARDED"}


def test_second_cancel_waits_and_reports_the_first(
    service: Service, eventually: Eventually
) -> None:
    event_id = write(service, delay=HOUR)

    def cancel() -> ChangeResult:
        with service.transaction() as session:
            return service.app.delayed.cancel(session, event_id).result

    with ThreadPoolExecutor() as threads:
        with service.transaction() as session:
            assert service.app.delayed.cancel(session, event_id)
            second = threads.submit(cancel)
            eventually(lambda: _waits_for_a_lock(service), "the second waits for the first")
        assert second.result() is ChangeResult.CANCELLED


def _waits_for_a_lock(service: Service) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
    return bool(service.rows(waiting + "AND wait_event_type = 'Lock'"))


# --- among many others ----------------------------------------------------------------------------

MANY = 30_000
_FILL = """
INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, key,
    payload, status, attempts, waiting, holds_key, due_at, unconfirmed, created_at)
SELECT gen_random_uuid(), i % 64, 'orders', 'orders.unpaid', 'orders.unpaid', 'COMMIT', 'INSERT',
    'k' || i, '{}', 'INIT', 0, true, false, now() + interval '1 hour' + i * interval '1 s', false,
    now()
FROM generate_series(1, :rows) AS i
"""
_ASKED: dict[str, Callable[[Service], tuple[Any, dict[str, Any]]]] = {
    "the next due time": lambda service: (
        delayed_sql.until_due(service.app.tables, dialect_of(service.engine.dialect)),
        delayed_sql.until_due_parameters(relay="r", since=1.0, within=1.0),
    ),
    "a claim": lambda service: (
        claim_sql.claim(service.app.tables, dialect_of(service.engine.dialect)),
        claim_sql.parameters(
            relay="r", token=uuid4(), limit=1000, limit_bytes=10**9, start=0, known=0
        ),
    ),
    "the list": lambda service: (
        delayed_sql.waiting(
            service.app.tables,
            dialect_of(service.engine.dialect),
            limit=2,
            event_type=None,
            topic=None,
            key=None,
        ),
        {},
    ),
}


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize(
    ("asked", "half"),
    [*((asked, False) for asked in _ASKED), ("the next due time", True), ("a claim", True)],
)
def test_statements_do_not_read_all_waiting_rows(
    make_service: Callable[..., Service], asked: str, *, half: bool, analyzed: bool
) -> None:
    """Read at most a twentieth of the blocks that a read of each waiting row would take."""
    service = make_service("orders", shards=64)
    service.execute("ALTER TABLE shield_outbox SET (autovacuum_enabled = off)")
    service.execute(_FILL.replace("'INIT'", "'HALF'") if half else _FILL, rows=MANY)
    if analyzed:
        service.execute("ANALYZE shield_outbox")
    service.relay("r")
    statement, parameters = _ASKED[asked](service)
    compiled = statement.compile(dialect=service.engine.dialect)
    expanded = compiled.construct_expanded_state(parameters)
    with service.engine.begin() as connection:
        [[[plan]]] = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {expanded.statement}", expanded.parameters
        ).all()
    read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert 64 <= read < MANY / 20


# --- at its time ----------------------------------------------------------------------------------


@pytest.fixture
def working(make_service: Callable[..., Service], eventually: Eventually) -> Iterator[Service]:
    """A service whose relay worker is woken only by hints and due times."""
    service = make_service("orders", relay_wakeup=True, relay_poll_interval=HOUR)
    service.app.declare("orders.unpaid", retry=QUICK)
    make_topics(service)
    worker = relay_process(service.app)
    ready = threading.Event()
    thread = threading.Thread(target=worker.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(20)
    shards = "SELECT count(*) FROM shield_shard WHERE lease_until > now()"
    eventually(lambda: service.rows(shards) == [(8,)], "the relay holds its shards")
    yield service
    worker.stop()
    thread.join(20)
    service.app.close()


def lateness(service: Service) -> list[float]:
    """Return how many seconds after its due time each event was acknowledged, by the database's
    clock.
    """
    late = "SELECT extract(epoch FROM settled_at - due_at)::float8 FROM shield_outbox"
    return [
        seconds for (seconds,) in service.rows(f"{late} WHERE status = 'PROCESSED' ORDER BY seq")
    ]


def test_due_events_are_published_within_a_second_without_a_poll(
    working: Service, eventually: Eventually
) -> None:
    for milliseconds in (1000, 1300, 2500, 1900):
        write(working, delay=timedelta(milliseconds=milliseconds))
    eventually(lambda: len(lateness(working)) == 4, "all are published")
    assert_in_time(lateness(working))


def test_event_rescheduled_to_an_earlier_time_is_published_then(
    working: Service, eventually: Eventually
) -> None:
    event_id = write(working, delay=HOUR)
    with working.transaction() as session:
        assert working.app.delayed.reschedule(session, event_id, delay=timedelta(seconds=1))
    eventually(lambda: len(lateness(working)) == 1, "it is published")
    assert_in_time(lateness(working))


def test_relay_that_waits_for_a_due_time_claims_rarely(
    working: Service, eventually: Eventually
) -> None:
    claims: list[str] = []

    def count(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "MATERIALIZED" in statement:
            claims.append(statement)

    sqlalchemy_event.listen(working.engine, "before_cursor_execute", count)
    write(working, delay=3 * SECOND)
    eventually(lambda: len(lateness(working)) == 1, "it is published")
    assert_in_time(lateness(working))
    # One claim when it was written, one when it was due, and a few for passes that are close
    # together.
    assert 2 <= len(claims) <= 6
