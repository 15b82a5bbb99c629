"""A statement reads its own rows and few others, for tables of any size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Integer, Table, column, func, insert, literal, select

from shieldtx import BizKey, Event, Refused
from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.statements.row_filters import RowFilter
from shieldtx.store.tables import tables
from tests.support.rows_in_any_state import inbox_row, outbox_row
from tests.support.rows_read import rows_read
from tests.support.service import QUICK, SHARDS, Service, drain, effect, make_topics

MANY, SETTLED = 3_000, 40_000
"""The numbers of foreign rows for each status: `SETTLED` for PROCESSED, `MANY` for the others."""
FEW = 100
"""The most rows that a statement may read: each concerns less than ten events."""
IN_A_YEAR = datetime(2199, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLACED, PAID = "orders.placed", "orders.paid"

OTHERS: list[tuple[Table, dict[str, Any]]] = [
    *(
        (tables().outbox, outbox_row(status, topic="others", event_type="others", **more))
        for status, more in [
            (OutboxStatus.PROCESSED, {}),
            (OutboxStatus.FAILED, {}),
            (OutboxStatus.DISCARDED, {}),
            (OutboxStatus.UNRESOLVED, {}),
            (OutboxStatus.INIT, {"waiting": True, "due_at": IN_A_YEAR}),
            (OutboxStatus.HALF, {"check_at": IN_A_YEAR, "due_at": IN_A_YEAR}),
        ]
    ),
    *(
        (tables().inbox, inbox_row(status, topic="others", event_type="others", **more))
        for status, more in [
            (InboxStatus.PROCESSED, {}),
            (InboxStatus.MAX_RECONSUMED, {}),
            (InboxStatus.DEAD, {}),
            (InboxStatus.INIT, {"consumer_group": "another"}),
            (InboxStatus.PROCESSING, {"consumer_group": "another", "due_at": IN_A_YEAR}),
        ]
    ),
]


def _fill(service: Service, table: Table, row: dict[str, Any]) -> None:
    """Write many rows like this one, with keys and ids of their own."""
    number = column("n", Integer)
    rows_of_it = SETTLED if row["status"] == "PROCESSED" else MANY
    own: dict[str, Any] = {
        "event_id": func.gen_random_uuid(),
        "key": func.concat("other-", number),
        "biz_key": func.concat(row["status"], "-", number),
    }
    if "shard" in table.c:
        own["shard"] = number % SHARDS
    for name in ("due_at", "check_at", "settled_at"):
        if row.get(name) is not None:
            own[name] = literal(row[name], table.c[name].type) + timedelta(seconds=1) * number
    values = {name: literal(value, table.c[name].type) for name, value in row.items()} | own
    rows = select(*values.values()).select_from(func.generate_series(1, rows_of_it).alias("n"))
    with service.engine.begin() as connection:
        connection.execute(insert(table).from_select(list(values), rows))


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    """A service among many foreign rows, which handles its own events and takes some back."""
    service = make_service("orders", half_check_timeout=5.0, barrier_patience=0.3)
    app = service.app
    app.declare(PLACED, retry=QUICK)
    app.declare(PAID)
    app.barrier(PAID, engine=service.engine)
    group = app.consumer("orders")

    @group.handles(PLACED, retry=QUICK)
    def handle(session: Any, event: Event) -> None:
        if event.key in ("refused", "dead"):
            raise Refused("not today")
        effect("handled")(session, event)

    @group.compensates(PLACED, retry=QUICK)
    def take_back(session: Any, event: Event) -> None:
        assert event.key != "dead"
        effect("taken back")(session, event)

    group.handles(PAID)(effect("paid"))
    make_topics(service)
    for table, row in OTHERS:
        _fill(service, table, row)
    service.execute("ANALYZE")
    return service


def _publish_handle_and_take_back(service: Service, work: Callable[[], None]) -> None:
    with service.transaction() as session:
        for key in ("a", "a", "refused", "dead", "b"):
            service.app.outbox.add(session, Event(type=PLACED, key=key, payload={}))
    work()
    assert sorted(service.effects()) == ["a", "a", "b", "refused"]


def _change_delayed_events(service: Service, work: Callable[[], None]) -> None:
    delayed = service.app.delayed
    with service.transaction() as session:
        first, second = (
            service.app.outbox.add(session, Event(type=PLACED, biz_key=name), delay=HOUR)
            for name in ("first", "second")
        )
    with service.transaction() as session:
        assert delayed.reschedule(session, first, delay=2 * HOUR)
        assert delayed.cancel(session, BizKey(PLACED, "second"))
        assert not delayed.cancel(session, second)
        assert [e.event_id for e in delayed.waiting(session, limit=1)] == [first]
        assert delayed.cancel(session, first)
    work()


def _end_half_messages(service: Service, work: Callable[[], None]) -> None:
    app = service.app
    with app.half(PAID, {"n": 1}) as tx, service.transaction() as session:
        tx.guard(session)
    with app.half(PAID, {"n": 2}) as tx:
        tx.rollback()
    with app.half(PAID, {"n": 3}) as tx:
        tx.unknown()
    service.execute("UPDATE shield_outbox SET check_at = now() WHERE event_id = :id", id=tx.id)
    [check_back] = app.half_messages.check_backs()
    check_back.run_once()
    work()
    assert len(service.effects("paid")) == 1


def _replay_the_dead(service: Service, work: Callable[[], None]) -> None:
    dead = SqlDeadLetters(service.engine, service.app.tables)
    [latest] = dead.latest(limit=1)
    [letter] = [found for found in dead.find(latest.envelope.id) if found.can_be_replayed]
    dead.replay([letter], who="ann")
    work()


STEPS = (
    _publish_handle_and_take_back,
    _change_delayed_events,
    _end_half_messages,
    _replay_the_dead,
)


def test_statement_reads_few_rows_in_addition_to_its_own(orders: Service) -> None:
    workers = orders.relay(), orders.app.build_consumer("orders")
    with rows_read(orders.engine) as read:
        for step in STEPS:
            step(orders, lambda: drain(*workers))
    shield = [each for each in read if "shield_" in each.statement]
    too_many = sorted({each for each in shield if each.rows > FEW}, reverse=True)
    assert not too_many, "\n\n".join(f"{each.rows} rows: {each.statement}" for each in too_many)
    # Proof that the count works: some statements find their rows.
    assert len(shield) > 50
    assert sum(each.rows > 0 for each in shield) > 20


def _park_many(service: Service) -> None:
    """Park records of another group; most of them are discarded."""
    service.execute(
        "INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, digest,"
        " reason, record_headers, parked_at, discarded_at)"
        " SELECT 'another', 'others.commit', 0, n, '', 'no event', '[]',"
        " now() - n * interval '1 second', CASE WHEN n > :waiting THEN now() END"
        " FROM generate_series(1, :rows) AS n",
        rows=SETTLED,
        waiting=MANY,
    )
    service.execute("ANALYZE shield_parked")


def test_lists_of_operators_read_few_rows(orders: Service) -> None:
    _park_many(orders)
    letters, traces = orders.app.stores.dead_letters(), orders.app.stores.trace()
    with rows_read(orders.engine) as read:
        for oldest in (False, True):
            for status in (OutboxStatus.FAILED, OutboxStatus.UNRESOLVED):
                assert len(letters.latest(limit=10, status=status, oldest=oldest)) == 10
            assert len(letters.parked(limit=10, values=False, oldest=oldest)) == 10
        assert len(letters.given_up(limit=10)) == 10
        [found] = letters.given_up(limit=10, rows=RowFilter(biz_key="MAX_RECONSUMED-77"))
        assert found.envelope.biz_key == "MAX_RECONSUMED-77"
        assert len(traces.events_of("PROCESSED-77")) == 2
        assert len(traces.events_of("PROCESSED-77", event_type="others")) == 2
        assert traces.events_of("PROCESSED-77", event_type=PLACED) == []
    too_many = sorted({each for each in read if each.rows > FEW}, reverse=True)
    assert not too_many, "\n\n".join(f"{each.rows} rows: {each.statement}" for each in too_many)
    # PostgreSQL underestimates the DEAD rows and sorts them all, but reads no others.
    with rows_read(orders.engine) as read:
        assert len(letters.latest(limit=10, status=InboxStatus.DEAD)) == 10
    assert [each.rows for each in read] <= [MANY]


def test_a_statement_without_an_index_is_found(orders: Service) -> None:
    with rows_read(orders.engine) as read:
        orders.rows("SELECT event_id FROM shield_outbox WHERE payload = 'x'")
    [found] = read
    assert found.rows == SETTLED + MANY * 5
