"""The overview counts correctly, shows its precision, and stays cheap on big tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from shieldtx import Event, InboxStatus, OutboxStatus, Settings, ShieldTx, new_event_id
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.status import Count, Precision, ServiceStatus, SqlStatus

MINUTE = timedelta(minutes=1)


@pytest.fixture(params=["postgresql", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShieldTx]:
    """A migrated service whose database has no workers."""
    url = f"sqlite:///{tmp_path}/service.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_url")
    yield from opened(url)


@pytest.fixture
def postgres_app(migrated_url: str) -> Iterator[ShieldTx]:
    yield from opened(migrated_url)


def opened(url: str) -> Iterator[ShieldTx]:
    app = ShieldTx(Settings(source="orders", database_url=url, shards=4, relay_wakeup=False))
    app.schema.upgrade()
    app.declare("orders.placed")
    app.declare("orders.paid")
    yield app
    app.engine.dispose()


def write(app: ShieldTx, count: int, event_type: str = "orders.placed", **options: Any) -> None:
    with Session(app.engine) as session, session.begin():
        events = [Event(type=event_type, key=f"k{number}") for number in range(count)]
        app.outbox.add_all(session, events, **options)


def receive(app: ShieldTx, count: int, *, group: str) -> None:
    arrivals = [
        IncomingEvent(envelope=a_rollback(f"k{n}"), record=a_record(n)) for n in range(count)
    ]
    SqlInboxStore(app.engine, app.tables).receive(group, arrivals, [])


def a_rollback(key: str) -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="orders.placed",
        source="stock",
        topic="orders.placed",
        payload="{}",
        time=datetime.now(UTC),
        kind=TxKind.ROLLBACK,
        key=key,
        causation_id=new_event_id(),
        causation_source="orders",
    )


def a_record(offset: int) -> ReceivedRecord:
    return ReceivedRecord(
        topic="orders.placed.commit", partition=0, offset=offset, key=None, value=b"?"
    )


def run(app: ShieldTx, statement: str, **parameters: Any) -> None:
    with app.engine.begin() as connection:
        connection.execute(text(statement), parameters)


def settle(app: ShieldTx, table: str, status: str, count: int, *, error: str | None) -> None:
    """Bring the first open rows of a table into a settled state."""
    run(
        app,
        f"UPDATE {table} SET status = :status, settled_at = created, last_error = :error "
        f"WHERE seq IN (SELECT seq FROM {table} WHERE settled_at IS NULL ORDER BY seq "
        f"LIMIT {count})".replace(
            "created", "created_at" if table == "shield_outbox" else "received_at"
        ),
        status=status,
        error=error,
    )


def rows(overview: ServiceStatus) -> dict[str, int]:
    """Return the numbers of rows in the outbox, by state."""
    return {state: count.rows for state, count in overview.outbox.states.items() if count.rows}


def test_empty_service_lists_every_state_without_rows(app: ShieldTx) -> None:
    overview = app.stores.status().read()

    assert set(overview.outbox.states) == set(OutboxStatus)
    assert set(overview.inbox.states) == set(InboxStatus)
    assert {*overview.outbox.states.values(), *overview.inbox.states.values()} == {Count()}
    assert overview.outbox.oldest is None
    assert (overview.topics, overview.groups, overview.relays) == ([], [], [])
    assert (overview.shards, overview.shards_held) == (4, 0)


def test_events_are_counted_by_state_and_by_topic(app: ShieldTx) -> None:
    write(app, 5)
    settle(app, "shield_outbox", "PROCESSED", 2, error=None)
    settle(app, "shield_outbox", "FAILED", 1, error="topic is gone")
    write(app, 3, "orders.paid")

    overview = app.stores.status().read()

    assert rows(overview) == {"PROCESSED": 2, "FAILED": 1, "INIT": 5}
    by_topic = {
        (topic.topic, state): count.rows
        for topic in overview.topics
        for state, count in topic.backlog.states.items()
        if count.rows
    }
    assert by_topic == {
        ("orders.paid", "INIT"): 3,
        ("orders.placed", "INIT"): 2,
        ("orders.placed", "PROCESSED"): 2,
        ("orders.placed", "FAILED"): 1,
    }
    assert {topic.kind for topic in overview.topics} == {TxKind.COMMIT}


def test_age_is_that_of_the_oldest_event_ready_to_be_sent(app: ShieldTx) -> None:
    write(app, 1, delay=10 * MINUTE)
    assert app.stores.status().read().outbox.oldest is None

    write(app, 2)
    shift = "created_at - interval '1 minute'"
    if app.engine.dialect.name == "sqlite":
        shift = "strftime('%Y-%m-%d %H:%M:%f000', created_at, '-60 seconds')"
    run(app, f"UPDATE shield_outbox SET created_at = {shift} WHERE NOT waiting")

    overview = app.stores.status().read()

    assert overview.outbox.oldest is not None
    assert MINUTE <= overview.outbox.oldest < 2 * MINUTE
    assert (overview.outbox.delayed, overview.outbox.retrying) == (Count(rows=1), Count())


def test_age_of_a_retried_event_counts_from_its_writing(
    app: ShieldTx,
) -> None:
    write(app, 1)
    run(app, "UPDATE shield_outbox SET waiting = :yes, holds_key = :yes, attempts = 1", yes=True)

    overview = app.stores.status().read()

    assert overview.outbox.retrying == Count(rows=1)
    assert overview.outbox.delayed == Count()
    assert overview.outbox.oldest is not None


def test_received_events_and_parked_records_count_by_group(
    app: ShieldTx,
) -> None:
    receive(app, 3, group="stock")
    settle(app, "shield_inbox", "DEAD", 1, error="no such order")
    run(app, "UPDATE shield_inbox SET attempts = 1 WHERE settled_at IS NULL AND key = 'k2'")
    store = SqlInboxStore(app.engine, app.tables)
    store.receive("mail", [], [Parked(record=a_record(7), reason="no JSON")])

    overview = app.stores.status().read()

    mail, stock = overview.groups
    assert (mail.group, mail.parked, mail.backlog.oldest) == ("mail", Count(rows=1), None)
    assert (stock.group, stock.parked) == ("stock", Count())
    assert stock.backlog.states["INIT"] == Count(rows=2)
    assert stock.backlog.states["DEAD"] == Count(rows=1)
    assert stock.backlog.retrying == Count(rows=1)
    assert stock.backlog.oldest is not None
    assert overview.inbox.states == stock.backlog.states


def test_live_relays_are_listed_with_their_shards(postgres_app: ShieldTx) -> None:
    app = postgres_app
    leases = SqlLeaseStore(app.engine, app.tables)
    leases.renew(relay="one", lease=MINUTE)
    leases.renew(relay="two", lease=MINUTE)
    leases.renew(relay="dead", lease=timedelta(microseconds=1))

    overview = app.stores.status().read()

    assert {relay.name: relay.shards for relay in overview.relays} == {"one": 4, "two": 0}
    assert (overview.shards, overview.shards_held) == (4, 4)


def test_counting_stops_at_the_limit_and_reports_it(postgres_app: ShieldTx) -> None:
    app = postgres_app
    write(app, 6)
    write(app, 2, "orders.paid")

    overview = SqlStatus(app.engine, app.tables, limit=3).read()

    assert overview.outbox.states["INIT"] == Count(rows=3, precision=Precision.AT_LEAST)
    assert overview.outbox.states["FAILED"] == Count()
    assert overview.outbox.oldest is not None
    # Found by a query per shard, although the limit was reached before them.
    assert {topic.topic for topic in overview.topics} == {"orders.placed", "orders.paid"}


def test_many_blocked_rows_hide_no_older_ones_of_other_shards(
    postgres_app: ShieldTx,
) -> None:
    app = postgres_app
    write(app, 12)
    write(app, 2, "orders.paid")
    run(app, "UPDATE shield_outbox SET shard = 0, holds_key = true, waiting = seq % 2 = 0")
    run(
        app,
        "UPDATE shield_outbox SET shard = 3, created_at = now() - interval '2 days' "
        "WHERE topic = 'orders.paid'",
    )

    overview = SqlStatus(app.engine, app.tables, limit=10).read()

    assert overview.outbox.states["INIT"] == Count(rows=10, precision=Precision.AT_LEAST)
    assert overview.outbox.retrying.precision is Precision.AT_LEAST
    assert overview.outbox.oldest is not None
    assert overview.outbox.oldest >= timedelta(days=2)
    assert {topic.topic for topic in overview.topics} == {"orders.placed", "orders.paid"}


def test_a_group_with_a_long_backlog_hides_no_other_group(postgres_app: ShieldTx) -> None:
    app = postgres_app
    receive(app, 5, group="audit")
    receive(app, 1, group="stock")

    audit, stock = SqlStatus(app.engine, app.tables, limit=2).read().groups

    assert audit.backlog.states["INIT"].rows == 2
    assert stock.backlog.states["INIT"].rows == 1


def test_counts_over_the_limit_use_the_database_statistics(postgres_app: ShieldTx) -> None:
    app = postgres_app
    write(app, 40)
    settle(app, "shield_outbox", "PROCESSED", 30, error=None)
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE shield_outbox"))

    states = SqlStatus(app.engine, app.tables, limit=5).read().outbox.states

    assert states["PROCESSED"] == Count(rows=30, precision=Precision.ESTIMATED)
    assert states["INIT"] == Count(rows=10, precision=Precision.ESTIMATED)
    assert states["FAILED"] == Count()


def test_the_tables_of_another_schema_are_not_mixed_in(database_url: str) -> None:
    apps = [
        ShieldTx(
            Settings(
                source="orders",
                database_url=database_url,
                database_schema=schema,
                shards=4,
                relay_wakeup=False,
            )
        )
        for schema in ("one", "other")
    ]
    for app in apps:
        app.schema.upgrade()
        app.declare("orders.placed")
    one, other = apps
    write(one, 20)
    with one.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE one.shield_outbox"))
    write(other, 3)

    try:
        counted = SqlStatus(one.engine, one.tables, limit=5).read().outbox.states["INIT"]
        assert counted == Count(rows=20, precision=Precision.ESTIMATED)
        counted = SqlStatus(other.engine, other.tables, limit=3).read().outbox.states["INIT"]
        assert counted == Count(rows=3, precision=Precision.AT_LEAST)
    finally:
        one.engine.dispose()
        other.engine.dispose()


def test_no_statement_reads_a_big_table_whole(postgres_app: ShieldTx) -> None:
    app = postgres_app
    columns = (
        "event_id, source, topic, event_type, tx_kind, operation, payload, status, due_at, "
        "settled_at, last_error"
    )
    values = (
        "gen_random_uuid(), 'orders', 'orders.placed', 'orders.placed', 'COMMIT', 'INSERT', "
        "repeat('x', 200), CASE WHEN n % 5000 = 0 THEN :dead ELSE 'PROCESSED' END, now(), now(), "
        "CASE WHEN n % 5000 = 0 THEN 'broken' END"
    )
    run(
        app,
        f"INSERT INTO shield_outbox ({columns}, shard, waiting, holds_key, unconfirmed, created_at)"
        f" SELECT {values}, n % 4, false, false, false, now() FROM generate_series(1, 20000) n",
        dead="FAILED",
    )
    run(
        app,
        f"INSERT INTO shield_inbox ({columns}, consumer_group, event_time, received_at)"
        f" SELECT {values}, 'stock', now(), now() FROM generate_series(1, 20000) n".replace(
            "'COMMIT'", "CASE WHEN n % 5000 = 0 THEN 'ROLLBACK' ELSE 'COMMIT' END"
        ),
        dead="DEAD",
    )
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        statements.append((statement, parameters))

    event.listen(app.engine, "before_cursor_execute", note)
    overview = SqlStatus(app.engine, app.tables, limit=100).read()
    event.remove(app.engine, "before_cursor_execute", note)

    assert overview.outbox.states["FAILED"] == Count(rows=4)
    assert overview.inbox.states["DEAD"] == Count(rows=4)
    read = {
        statement: pages_read(app, statement, parameters)
        for statement, parameters in statements
        if "shield_" in statement
    }
    assert len(read) >= 8
    # Each table has more than 700 pages.
    assert {s: pages for s, pages in read.items() if pages > 60} == {}


def pages_read(app: ShieldTx, statement: str, parameters: Any) -> int:
    """Return how many pages of 8 KiB a statement touches."""
    with app.engine.connect() as connection:
        plan = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
        ).scalar_one()
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


def test_dead_rollbacks_are_counted_despite_later_refusals(migrated_url: str) -> None:
    for app in opened(migrated_url):
        receive(app, 5, group="stock")
        settle(app, "shield_inbox", "DEAD", 5, error="the bank is away")
        receive(app, 40, group="stock")
        run(app, "UPDATE shield_inbox SET tx_kind = 'COMMIT' WHERE status = 'INIT'")
        settle(app, "shield_inbox", "MAX_RECONSUMED", 40, error="sold out")
        run(app, "UPDATE shield_inbox SET settled_at = now() WHERE status = 'MAX_RECONSUMED'")

        overview = SqlStatus(app.engine, app.tables, limit=10).read()

        assert overview.inbox.states["DEAD"] == Count(rows=5)
        [group] = overview.groups
        assert group.backlog.states["DEAD"] == Count(rows=5)


def test_unresolved_messages_are_counted_despite_later_failures(app: ShieldTx) -> None:
    write(app, 30)
    settle(app, "shield_outbox", "UNRESOLVED", 3, error="nobody can tell")
    settle(app, "shield_outbox", "FAILED", 25, error="topic is gone")

    overview = SqlStatus(app.engine, app.tables, limit=10).read()

    assert overview.outbox.states["UNRESOLVED"] == Count(rows=3)
    assert overview.outbox.states["FAILED"] == Count(rows=25)


def test_unsent_events_are_due_and_neither_delayed_nor_half(app: ShieldTx) -> None:
    write(app, 9)
    later = "due_at = :later, waiting = true"
    when = {"later": datetime.now(UTC) + timedelta(hours=1)}
    for number, change in (
        ("1", f"{later}, attempts = 1, holds_key = true"),
        ("2", "holds_key = true"),
        ("3", later),
        ("4", f"{later}, check_at = :later, status = 'HALF'"),
        ("5", "waiting = true, due_at = created_at"),
        ("6", "status = 'PROCESSED', settled_at = created_at"),
    ):
        one = f"seq = (SELECT min(seq) + {number} FROM shield_outbox)"
        run(app, f"UPDATE shield_outbox SET {change} WHERE {one}", **when)

    unsent = app.stores.status().unsent()

    assert (unsent.events, unsent.shards_held) == (Count(rows=6), 0)
    assert SqlStatus(app.engine, app.tables, limit=2).unsent().events == Count(
        rows=5, precision=Precision.AT_LEAST
    )


def test_groups_and_topics_with_few_waiting_rows_are_listed(app: ShieldTx) -> None:
    """All other groups and topics together exceed the limit, and their rows are later."""
    write(app, 2, "orders.paid")
    settle(app, "shield_outbox", "FAILED", 2, error="topic is gone")
    write(app, 30)
    settle(app, "shield_outbox", "FAILED", 30, error="topic is gone")
    receive(app, 2, group="stock")
    settle(app, "shield_inbox", "DEAD", 2, error="the bank is closed")
    receive(app, 30, group="billing")
    settle(app, "shield_inbox", "DEAD", 30, error="the bank is closed")

    overview = SqlStatus(app.engine, app.tables, limit=10).read()

    topics = {topic.topic: topic.backlog.states["FAILED"] for topic in overview.topics}
    assert topics == {"orders.paid": Count(rows=2), "orders.placed": Count(rows=30)}
    groups = {group.group: group.backlog.states["DEAD"] for group in overview.groups}
    assert groups == {"stock": Count(rows=2), "billing": Count(rows=30)}


def test_parked_records_are_counted_despite_many_of_another(app: ShieldTx) -> None:
    store = SqlInboxStore(app.engine, app.tables)
    for group, records in (("billing", 30), ("stock", 2)):
        store.receive(group, [], [Parked(record=a_record(n), reason="?") for n in range(records)])

    overview = SqlStatus(app.engine, app.tables, limit=10).read()

    parked = {group.group: group.parked for group in overview.groups}
    assert parked["stock"] == Count(rows=2)
    assert parked["billing"].precision is Precision.AT_LEAST
