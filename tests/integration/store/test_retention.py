"""The purge removes old settled rows in small steps, and keeps everything else."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import ProgrammingError

from shieldtx import InboxStatus, OutboxStatus, new_event_id
from shieldtx.domain.states import INBOX, OUTBOX
from shieldtx.ports.retention import NOTED_AHEAD, Purged
from shieldtx.ports.tracing import TraceEntry
from shieldtx.retention import REST, Retention, RetentionService
from shieldtx.store.dialects import dialect_of
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.retention import SqlRetentionStore
from shieldtx.store.statements import retention as sql
from shieldtx.store.trace import SqlTraceStore
from tests.support.log_records import logged
from tests.support.write_side_shop import Shop

DAY = timedelta(days=1)
"""The retention of these tests."""
YOUNG, OLD = timedelta(hours=23), timedelta(hours=25)
LONG_AGO = timedelta(days=3)


def id_made(ago: timedelta) -> UUID:
    return UUID(int=new_event_id().int - (int(ago.total_seconds() * 1000) << 80))


def row(event_id: UUID, status: str, settled: timedelta | None) -> dict[str, Any]:
    """The columns that outbox and inbox share."""
    now = datetime.now(UTC)
    return {
        "event_id": event_id,
        "source": "shop",
        "topic": "orders",
        "event_type": "order.placed",
        "tx_kind": "COMMIT",
        "operation": "INSERT",
        "payload": "{}",
        "status": str(status),
        "seq": event_id.int % 2**40,
        "due_at": now,
        "settled_at": None if settled is None else now - settled,
    }


def fill_outbox(shop: Shop, *rows: dict[str, Any]) -> list[UUID]:
    own = {"shard": 0, "waiting": False, "holds_key": False, "unconfirmed": False}
    own["created_at"] = datetime.now(UTC)
    given = [r | own for r in rows]
    if shop.on_postgres:  # its sequence numbers the rows
        given = [{k: v for k, v in r.items() if k != "seq"} for r in given]
    with shop.engine.begin() as connection:
        connection.execute(insert(shop.tables.outbox), given)
    return [r["event_id"] for r in rows]


def fill_inbox(shop: Shop, *rows: dict[str, Any], group: str = "stock") -> list[UUID]:
    now = datetime.now(UTC)
    own = {"consumer_group": group, "event_time": now, "received_at": now}
    given = [r | own for r in rows]
    if shop.on_postgres:
        given = [{k: v for k, v in r.items() if k != "seq"} for r in given]
    with shop.engine.begin() as connection:
        connection.execute(insert(shop.tables.inbox), given)
    return [r["event_id"] for r in rows]


def left(shop: Shop, table: str) -> set[UUID]:
    with shop.engine.connect() as connection:
        return set(connection.scalars(select(getattr(shop.tables, table).c.event_id)))


def retention_of(shop: Shop, **options: Any) -> RetentionService:
    store = SqlRetentionStore(shop.engine, shop.tables)
    return RetentionService(store=store, retention=Retention(outbox=DAY, inbox=DAY, **options))


@pytest.mark.parametrize(
    ("fill", "table", "lifecycle", "statuses"),
    [
        (fill_outbox, "outbox", OUTBOX, OutboxStatus),
        (fill_inbox, "inbox", INBOX, InboxStatus),
    ],
    ids=["outbox", "inbox"],
)
def test_purged_rows_are_final_and_older_than_their_retention(
    shop: Shop, fill, table, lifecycle, statuses
):
    kept, gone = set(), set()
    for status in statuses:
        settled = status in lifecycle.settled
        for age in (YOUNG, OLD):
            ids = fill(shop, row(id_made(LONG_AGO), status, age if settled else None))
            (gone if status in lifecycle.purgeable and age is OLD else kept).update(ids)
    done = retention_of(shop).run_once()
    assert (left(shop, table), done.removed, done.more) == (kept, len(gone), False)


def test_rows_that_wait_for_an_operator_are_never_purged(shop: Shop):
    years = timedelta(days=3000)
    waiting = fill_outbox(
        shop, *(row(id_made(years), s, years) for s in ("FAILED", "UNRESOLVED"))
    ) + fill_inbox(shop, row(id_made(years), "DEAD", years))
    assert retention_of(shop).run_once().removed == 0
    assert left(shop, "outbox") | left(shop, "inbox") == set(waiting)


def settled(event_id: UUID, **more: Any) -> dict[str, Any]:
    """Return a settled row that is too young for the purge."""
    return row(event_id, "PROCESSED", YOUNG) | more


def rollback_of(event_id: UUID, status: str = "PROCESSED", **more: Any) -> dict[str, Any]:
    """Return an old rollback of an event: settled, or open."""
    at_rest = OLD if status in {"PROCESSED", "DEAD"} else None
    named = {"tx_kind": "ROLLBACK", "causation_id": event_id, "causation_source": "shop"}
    return row(id_made(LONG_AGO), status, at_rest) | named | more


@pytest.mark.parametrize(
    ("beside", "is_kept"),
    [
        (lambda shop, event: fill_outbox(shop, settled(event)), True),
        (lambda shop, event: fill_inbox(shop, settled(event)), True),
        (lambda shop, event: fill_inbox(shop, rollback_of(event, "INIT")), True),
        (lambda shop, event: fill_inbox(shop, rollback_of(event, "DEAD")), True),
        (lambda shop, event: fill_outbox(shop, settled(id_made(LONG_AGO))), False),
        (lambda shop, event: fill_inbox(shop, settled(id_made(LONG_AGO))), False),
        (lambda shop, event: fill_inbox(shop, settled(event), group="mail"), False),
        (lambda shop, event: fill_inbox(shop, rollback_of(event, "INIT"), group="mail"), False),
        (lambda shop, event: fill_inbox(shop, settled(event, tx_kind="ROLLBACK")), False),
        (lambda shop, event: None, False),
    ],
    ids=[
        "written-here",
        "received",
        "rollback-open",
        "rollback-dead",
        "another-written-here",
        "another-received",
        "received-by-another-group",
        "rollback-open-in-another-group",
        "rollback-with-its-id",
        "event-gone",
    ],
)
def test_mark_of_a_compensation_stays_while_another_may_follow(shop: Shop, beside, is_kept):
    event = id_made(LONG_AGO)
    [note] = fill_inbox(shop, rollback_of(event, compensated_id=event))
    beside(shop, event)
    retention_of(shop).run_once()
    assert (note in left(shop, "inbox")) is is_kept


@pytest.mark.parametrize(
    ("beside", "is_kept"),
    [
        (lambda shop, caused: fill_outbox(shop, settled(new_event_id()) | caused), True),
        (
            lambda shop, caused: fill_outbox(
                shop, settled(new_event_id()) | caused | {"tx_kind": "ROLLBACK"}
            ),
            False,
        ),
        (
            lambda shop, caused: fill_outbox(
                shop, settled(new_event_id()) | caused | {"causation_source": "elsewhere"}
            ),
            False,
        ),
        (lambda shop, caused: fill_outbox(shop, settled(caused["causation_id"])), False),
        (
            lambda shop, caused: fill_inbox(shop, rollback_of(caused["causation_id"], "INIT")),
            True,
        ),
        (
            lambda shop, caused: fill_inbox(
                shop, rollback_of(caused["causation_id"], "INIT"), group="mail"
            ),
            False,
        ),
        (lambda shop, caused: fill_inbox(shop, rollback_of(caused["causation_id"])), False),
    ],
    ids=[
        "event-written-by-its-handler",
        "rollback-written-by-its-handler",
        "event-caused-by-another-source",
        "sent-from-here-as-well",
        "rollback-open",
        "rollback-open-in-another-group",
        "rollback-settled",
    ],
)
def test_a_received_event_stays_while_a_compensation_may_need_it(shop: Shop, beside, is_kept):
    [event] = fill_inbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    beside(shop, {"causation_id": event, "causation_source": "shop"})
    retention_of(shop).run_once()
    assert (event in left(shop, "inbox")) is is_kept


def test_purged_rows_are_logged_by_table(shop: Shop, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "shieldtx")
    fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    fill_inbox(shop, *(row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(2)))
    retention_of(shop).run_once()
    tables = {each["table"]: each["count"] for each in logged(caplog.records, "rows_purged")}
    assert tables == {"outbox": 1, "inbox": 2}


def test_outbox_and_inbox_have_retentions_of_their_own(shop: Shop):
    fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    fill_inbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    store = SqlRetentionStore(shop.engine, shop.tables)
    keeping = RetentionService(store=store, retention=Retention(outbox=DAY, inbox=2 * DAY))
    assert keeping.run_once().removed == 1
    assert (len(left(shop, "outbox")), len(left(shop, "inbox"))) == (0, 1)


def test_the_trace_has_a_retention_and_a_size_of_its_own(shop: Shop):
    store = SqlTraceStore(shop.engine, shop.tables)

    def trace(hours: int, entries: int) -> list[UUID]:
        ids = [new_event_id() for _ in range(entries)]
        ended = time.monotonic() - hours * 3600
        made = [
            TraceEntry(event_id=i, group=None, attempt=1, outcome="X", ended=ended) for i in ids
        ]
        store.write(made, clock=time.monotonic)
        return ids

    trace(hours=48, entries=10)
    young = trace(hours=1, entries=10)
    fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    assert retention_of(shop).run_once().removed == 1, "without a retention it stays"
    assert retention_of(shop, trace=DAY).run_once().removed == 10
    assert left(shop, "trace") == set(young)
    done = retention_of(shop, trace=DAY, trace_rows=4, batch_size=3).run_once()
    assert (done.removed, done.more) == (6, False)
    assert left(shop, "trace") == set(young[6:])


def test_pass_has_a_number_of_batches_and_reports_more(shop: Shop):
    fill_outbox(shop, *(row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(25)))
    keeper = retention_of(shop, batch_size=5, batches_per_pass=2)
    passes = [keeper.run_once() for _ in range(3)]
    assert [(p.removed, p.more) for p in passes[:2]] == [(10, True), (10, True)]
    assert (passes[2].removed, left(shop, "outbox")) == (5, set())
    assert keeper.run_once().more is False


def test_purge_rests_between_batches_by_their_duration(shop: Shop):
    fill_outbox(shop, *(row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(12)))
    store = SqlRetentionStore(shop.engine, shop.tables)
    now, rests = [0.0], []

    def one_that_takes_its_time(**limits: Any) -> Purged:
        done = SqlRetentionStore.purge_outbox(store, **limits)
        now[0] += done.removed
        return done

    store.purge_outbox = one_that_takes_its_time
    keeper = RetentionService(
        store=store,
        retention=Retention(outbox=DAY, inbox=DAY, batch_size=5),
        clock=lambda: now[0],
        rest=rests.append,
    )
    assert keeper.run_once().removed == 12
    assert rests[:3] == [5 * REST, 5 * REST, 2 * REST]


def test_batch_reads_at_most_its_limit_of_rows(shop: Shop):
    kept = fill_outbox(shop, *(row(id_made(2 * LONG_AGO), "FAILED", OLD) for _ in range(30)))
    fill_outbox(shop, *(row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(10)))
    store = SqlRetentionStore(shop.engine, shop.tables)
    batches = [store.purge_outbox(older_than=DAY, limit=10) for _ in range(4)]
    # The walk passes the rows that stay, batch by batch, and remembers its position.
    assert [(b.removed, b.more) for b in batches] == [(0, True)] * 3 + [(10, True)]
    assert left(shop, "outbox") == set(kept)


def test_walk_restarts_at_the_end_of_the_table(shop: Shop):
    keeper = retention_of(shop)
    assert keeper.run_once().removed == 0
    fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    assert keeper.run_once().removed == 1


def test_pass_over_kept_rows_only_asks_for_no_other_pass(shop: Shop):
    fill_outbox(shop, *(row(id_made(LONG_AGO), "FAILED", OLD) for _ in range(20)))
    assert retention_of(shop, batch_size=5, batches_per_pass=2).run_once().more is False


def test_rows_with_ids_of_other_producers_are_purged_too(shop: Shop):
    foreign = [UUID(int=uuid4().int | (0xF << 124)), UUID("ffffffff-ffff-4fff-bfff-ffffffffffff")]
    old = [row(event_id, "PROCESSED", OLD) for event_id in foreign]
    kept = fill_inbox(shop, row(UUID(int=uuid4().int | (0xF << 124)), "PROCESSED", YOUNG))
    fill_inbox(shop, *old)
    assert retention_of(shop).run_once().removed == 2
    assert left(shop, "inbox") == set(kept)


def test_purge_removes_the_row_of_one_group_only(shop: Shop):
    received = row(id_made(LONG_AGO), "PROCESSED", OLD)
    fill_inbox(shop, received, group="stock")
    fill_inbox(shop, received | {"settled_at": datetime.now(UTC)}, group="mail")
    assert retention_of(shop).run_once().removed == 1
    with shop.engine.connect() as connection:
        groups = connection.scalars(select(shop.tables.inbox.c.consumer_group))
        assert list(groups) == ["mail"]


def test_a_locked_row_is_skipped_and_purged_later(postgres_shop: Shop):
    shop = postgres_shop
    held, _ = fill_outbox(shop, *(row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(2)))
    o = shop.tables.outbox
    keeper = retention_of(shop)
    with shop.engine.begin() as connection:
        connection.execute(select(o).where(o.c.event_id == held).with_for_update())
        assert keeper.run_once().removed == 1
        assert left(shop, "outbox") == {held}
    assert keeper.run_once().removed == 1


def test_two_relays_purge_concurrently_without_wait_or_error(postgres_shop: Shop):
    shop = postgres_shop
    rows = [row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(400)]
    fill_outbox(shop, *rows)
    removed: list[int] = []

    def work() -> None:
        removed.append(retention_of(shop, batch_size=20).run_once().removed)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(removed) == 2
    assert sum(removed) + retention_of(shop).run_once().removed == len(rows)
    assert left(shop, "outbox") == set()


MULTIPLY = """
    INSERT INTO shield_{table} ({columns})
    SELECT ('018f0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, {rest}
    FROM shield_{table}, generate_series(1, 30000) n
"""


@pytest.mark.parametrize("table", ["outbox", "inbox"])
def test_the_purge_walks_along_the_primary_key(postgres_shop: Shop, table: str):
    shop = postgres_shop
    (fill_outbox if table == "outbox" else fill_inbox)(
        shop, row(id_made(LONG_AGO), "PROCESSED", OLD)
    )
    described, dialect = getattr(shop.tables, table), dialect_of(shop.engine.dialect)
    span = {"after": UUID(int=0), "upto": id_made(DAY), "limit": 100}
    is_needed = sql.is_needed_in_outbox if table == "outbox" else sql.is_needed_in_inbox
    needed = is_needed(shop.tables)
    statements = [
        sql.end_of_batch(described, **span),
        sql.purge(described, dialect, status=("PROCESSED",), older_than=DAY, needed=needed, **span),
    ]
    rest = ", ".join(c.name for c in described.columns if c.name not in {"event_id", "seq"})
    with shop.engine.begin() as connection:
        multiply = MULTIPLY.format(table=table, columns=f"event_id, {rest}", rest=rest)
        connection.execute(text(multiply))
        connection.execute(text(f"ANALYZE {described.name}"))
        for statement in statements:
            compiled = statement.compile(connection, compile_kwargs={"literal_binds": True})
            plan = "\n".join(connection.scalars(text(f"EXPLAIN {compiled}")))
            assert f"using {described.name}_pkey" in plan
            assert f"Seq Scan on {described.name}" not in plan
        connection.rollback()


def notes(shop: Shop) -> dict[str, datetime]:
    """Return the recorded time up to which the purge has removed rows, by table."""
    every = select(shop.tables.purged)
    with shop.engine.connect() as connection:
        return {note.purged_table: note.purged_until for note in connection.execute(every)}


def test_purge_records_the_time_up_to_which_it_removed_rows(shop: Shop):
    fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    began = datetime.now(UTC)
    retention_of(shop).run_once()
    noted = notes(shop)
    assert noted.keys() == {"outbox"}, "nothing was removed from the inbox"
    # The recorded time may be ahead by a minute.
    assert began - DAY <= noted["outbox"] <= datetime.now(UTC) - DAY + NOTED_AHEAD
    repairs = SqlRepairStore(shop.engine, shop.tables, source="shop")
    assert repairs.purged_until() == noted["outbox"]


def test_purge_without_outbox_or_inbox_rows_records_nothing(shop: Shop):
    fill_outbox(
        shop, row(id_made(LONG_AGO), "FAILED", OLD), row(new_event_id(), "PROCESSED", YOUNG)
    )
    with shop.engine.begin() as connection:
        old = {"at": datetime.now(UTC) - OLD, "who": "x", "action": "x"}
        connection.execute(insert(shop.tables.audit).values(**old, subject="x", detail="x"))
    assert retention_of(shop, audit=DAY).run_once().removed == 1
    assert notes(shop) == {}
    assert SqlRepairStore(shop.engine, shop.tables, source="shop").purged_until() is None


def test_each_table_has_a_purge_record_and_the_later_counts(shop: Shop):
    fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", LONG_AGO))
    fill_inbox(shop, row(id_made(LONG_AGO), "PROCESSED", LONG_AGO))
    store = SqlRetentionStore(shop.engine, shop.tables)
    assert store.purge_outbox(older_than=DAY, limit=10).removed == 1
    assert store.purge_inbox(older_than=2 * DAY, limit=10).removed == 1

    noted = notes(shop)

    assert noted["inbox"] < noted["outbox"]
    assert SqlRepairStore(shop.engine, shop.tables, source="shop").purged_until() == noted["outbox"]


def test_purge_with_a_longer_retention_keeps_its_record(shop: Shop):
    def purged(older_than: timedelta, age: timedelta) -> datetime:
        fill_inbox(shop, row(id_made(2 * LONG_AGO), "PROCESSED", age))
        store = SqlRetentionStore(shop.engine, shop.tables)
        assert store.purge_inbox(older_than=older_than, limit=10).removed == 1
        return notes(shop)["inbox"]

    before = purged(DAY, LONG_AGO)
    assert purged(2 * DAY, LONG_AGO) == before
    assert purged(DAY / 2, OLD) >= before + DAY / 2 - NOTED_AHEAD


def test_batches_of_one_minute_write_the_purge_record_once(postgres_shop: Shop):
    shop = postgres_shop
    fill_outbox(shop, *(row(id_made(LONG_AGO), "PROCESSED", OLD) for _ in range(20)))
    store = SqlRetentionStore(shop.engine, shop.tables)
    store.purge_outbox(older_than=DAY, limit=5)
    with shop.engine.begin() as other:
        noted = other.execute(select(shop.tables.purged).with_for_update()).all()
        assert store.purge_outbox(older_than=DAY, limit=5).removed == 5
        assert store.purge_outbox(older_than=DAY, limit=5).removed == 5
        assert other.execute(select(shop.tables.purged)).all() == noted


def test_rows_stay_if_their_purge_cannot_be_recorded(postgres_shop: Shop):
    shop = postgres_shop
    kept = fill_outbox(shop, row(id_made(LONG_AGO), "PROCESSED", OLD))
    rename = "ALTER TABLE {} RENAME TO {}"
    with shop.engine.begin() as connection:
        connection.execute(text(rename.format("shield_purged", "elsewhere")))
    try:
        with pytest.raises(ProgrammingError, match="shield_purged"):
            retention_of(shop).run_once()
        assert left(shop, "outbox") == set(kept)
    finally:
        with shop.engine.begin() as connection:
            connection.execute(text(rename.format("elsewhere", "shield_purged")))
    assert retention_of(shop).run_once().removed == 1
    assert notes(shop).keys() == {"outbox"}
