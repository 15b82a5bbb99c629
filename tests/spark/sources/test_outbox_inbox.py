"""Tests of what the job reads from a real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import Row
from sqlalchemy import make_url, text

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.digest_buckets import Buckets, buckets_for
from shieldtx.reconcile.expectations import Received, Sent
from shieldtx.reconcile.request import ReconcileRequest
from spark.sources import outbox_inbox, row_filters, server_checks
from spark.sources.jdbc import Databases
from tests.spark.planting import TOPIC

MINUTE = timedelta(minutes=1)


def asking(spark, *services, **changes):
    request = ReconcileRequest(services=services, folder=Path("unused"), **changes)
    lately = datetime.now(UTC) - request.margin
    return Databases(spark=spark, request=request, lately=lately)


def outbox(spark, *services, of=0, **given):
    return outbox_inbox.outbox(asking(spark, *services), services[of], **given)


def inbox(spark, *services, of=0, **given):
    return outbox_inbox.inbox(asking(spark, *services), services[of], **given)


def clock_of(spark, service):
    return asking(spark, service).clocks()[service.name]


def moved_ages(service, frame):
    """Return by event the minutes since it last moved; negative: until it is due to move."""
    now = service.now()
    (moved,) = (name for name in frame.columns if name.endswith("_moved_at"))
    return {
        row.event_id: round((now - row[moved].astimezone(now.tzinfo)) / MINUTE)
        for row in frame.collect()
    }


def test_the_clock_is_that_of_the_database(spark, orders):
    before = orders.now()
    clock = clock_of(spark, orders.database(retention=MINUTE))
    assert before <= clock.now <= orders.now()
    assert (clock.service, clock.retention, clock.obstacle) == ("orders", MINUTE, "")
    assert clock.oldest_transaction is None


def test_the_clock_knows_since_when_the_oldest_transaction_runs(spark, orders):
    with orders.engine.connect() as first, orders.engine.connect() as second:
        began = first.scalar(text("SELECT now()"))
        second.execute(text("SELECT 1"))
        assert clock_of(spark, orders.database()).oldest_transaction == began


def test_transactions_of_other_databases_do_not_count(spark, orders, stock):
    with stock.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert clock_of(spark, orders.database()).oldest_transaction is None


@pytest.fixture
def reader(orders):
    """Return a role that may only read the tables, and the URL with which it does."""
    role = f"reader_{new_event_id().hex}"
    with orders.engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'reads'"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    url = make_url(orders.url).set(username=role, password="reads")
    yield role, url.render_as_string(hide_password=False)
    with orders.engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_role_that_cannot_see_other_transactions_is_reported(spark, orders, reader):
    role, url = reader
    with orders.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert (
            f"GRANT pg_read_all_stats TO {role}"
            in clock_of(spark, orders.database(url=url)).obstacle
        )
    with orders.engine.begin() as connection:
        connection.execute(text(f"GRANT pg_read_all_stats TO {role}"))
    with orders.engine.connect() as connection:
        began = connection.scalar(text("SELECT now()"))
        clock = clock_of(spark, orders.database(url=url))
    assert (clock.obstacle, clock.oldest_transaction) == ("", began)


def test_replica_does_not_show_transactions_of_its_primary(orders):
    answer = Row(is_replica=True, hidden_sessions=0, role="postgres")
    assert "replica" in server_checks._obstacle(orders.database(), answer)


def test_reading_tables_takes_the_right_to_select_alone(spark, orders, stock, reader):
    event = orders.write()
    read = outbox(spark, orders.database(url=reader[1]), stock.database()).collect()
    assert [row.event_id for row in read] == [str(event)]


def test_the_session_cannot_write(spark, orders):
    with pytest.raises(Exception, match="read-only transaction"):
        asking(spark, orders.database()).rows(
            orders.database(), "SELECT setval('shield_outbox_seq_seq', 1)"
        )
    writing = asking(spark, orders.database()).frame(
        orders.database(), "SELECT setval('shield_outbox_seq_seq', 1) AS w"
    )
    with pytest.raises(Exception, match="read-only transaction"):
        writing.collect()


def test_a_statement_that_takes_too_long_is_given_up(spark, orders):
    impatient = asking(spark, orders.database(), statement_timeout=timedelta(seconds=1))
    with pytest.raises(Exception, match="statement timeout"):
        impatient.rows(orders.database(), "SELECT pg_sleep(60)")


def test_each_row_is_read_once_over_all_parts(spark, orders, stock):
    written = {str(orders.write()) for _ in range(23)}
    frame = outbox(spark, orders.database())
    read = [row.event_id for row in frame.collect()]
    assert frame.rdd.getNumPartitions() == len(row_filters.EVERYTHING.parts) > 1
    assert len(read) == 23
    assert set(read) == written


def test_no_payload_and_no_key_leaves_the_database(spark, orders, stock):
    for frame in (outbox(spark, orders.database()), inbox(spark, stock.database())):
        assert not {"payload", "headers", "key", "biz_key"} & set(frame.columns)


def test_rows_are_read_that_came_from_one_of_the_services(spark, orders, stock):
    both = (orders.database(), stock.database())
    event = orders.write()
    orders.write(source="a former name")
    stock.receive(event, group="reserve", source="orders")
    stock.receive(new_event_id(), group="reserve", source="elsewhere")
    sent, received = outbox(spark, *both, of=0), inbox(spark, *both, of=1)
    assert [(row.upstream, row.event_id) for row in sent.collect()] == [("orders", str(event))]
    assert [(r.upstream, r.downstream, r.event_id) for r in received.collect()] == [
        ("orders", "stock", str(event))
    ]


def test_rows_are_read_by_their_ids(spark, orders):
    written = [str(orders.write()) for _ in range(5)]
    read = outbox(spark, orders.database(), read=row_filters.by_ids(written[1:3])).collect()
    assert {row.event_id for row in read} == set(written[1:3])


def test_invalid_id_does_not_get_into_a_query():
    with pytest.raises(ValueError, match="UUID"):
        row_filters.by_ids(["x') OR true --"])


def test_types_name_the_senders_and_receivers_of_events(spark, orders, stock):
    both = (orders.database(), stock.database())
    event = orders.write(causation_source="elsewhere")
    rollback = stock.write(kind=TxKind.ROLLBACK, causation_source="orders")
    stock.receive(event, group="reserve", source="orders", causation_source="elsewhere")
    orders.receive(
        rollback, group="refund", source="stock", kind=TxKind.ROLLBACK, causation_source="orders"
    )
    found = asking(spark, *both)
    names = {"topic": "orders.placed", "event_type": "orders.placed"}
    forth = {"kind": TxKind.COMMIT, **names}
    back = {"kind": TxKind.ROLLBACK, "causation_source": "orders", **names}
    assert outbox_inbox.types_sent(found, both[0]) == [Sent(upstream="orders", **forth)]
    assert outbox_inbox.types_sent(found, both[1]) == [Sent(upstream="stock", **back)]
    assert outbox_inbox.types_received(found, both[1]) == [
        Received(downstream="stock", group="reserve", source="orders", **forth)
    ]
    assert outbox_inbox.types_received(found, both[0]) == [
        Received(downstream="orders", group="refund", source="stock", **back)
    ]


def test_rollback_follows_from_give_up_or_later_compensation(spark, orders, stock):
    refused, passed_on, unasked = (orders.write() for _ in range(3))
    gave_up = InboxStatus.MAX_RECONSUMED
    stock.receive(refused, gave_up, group="reserve", source="orders")
    stock.receive(refused, group="mail", source="orders")
    for event in (passed_on, unasked):
        stock.receive(event, group="reserve", source="orders")
    further = stock.write(causation_id=passed_on, causation_source="orders")
    stock.receive(
        new_event_id(),
        group="undo",
        source="mail",
        kind=TxKind.ROLLBACK,
        causation_id=further,
        causation_source="stock",
        compensated_id=further,
    )
    for event in (refused, passed_on, unasked):
        stock.write(kind=TxKind.ROLLBACK, causation_id=event, causation_source="orders")
    service = stock.database()
    read = outbox_inbox.rollbacks(asking(spark, service), service).collect()
    assert {(r.upstream, r.downstream, r.event_id, r.entitled) for r in read} == {
        ("orders", "stock", str(refused), True),
        ("orders", "stock", str(passed_on), True),
        ("orders", "stock", str(unasked), False),
    }
    undone = outbox_inbox.compensations(asking(spark, service), service).collect()
    assert [(r.downstream, r.consumer_group, r.causation_id) for r in undone] == [
        ("stock", "undo", str(further))
    ]


def test_compensation_is_due_for_applied_and_own_events(spark, orders, stock):
    """No compensation is due for an applied event of another service that has the same id."""
    applied, gave_up, refused, elsewhere, foreign = (orders.write() for _ in range(5))
    of = {"group": "reserve", "source": "orders"}
    stock.receive(applied, **of)
    stock.receive(gave_up, InboxStatus.MAX_RECONSUMED, **of)
    stock.receive(refused, InboxStatus.FENCED, **of)
    stock.receive(elsewhere, group="mail", source="orders")
    stock.receive(foreign, group="reserve", source="bank")
    own, never = new_event_id(), new_event_id()

    def back(event, status=InboxStatus.PROCESSED, *, by="orders", writer="orders"):
        rollback = new_event_id()
        cause = {"causation_id": event, "causation_source": writer}
        of = {"group": "reserve", "source": by, "kind": TxKind.ROLLBACK}
        stock.receive(rollback, status, **of, **cause)
        return str(rollback)

    owes = {
        back(applied): True,
        back(applied, by="stock"): True,
        back(own, writer="stock"): True,
        back(gave_up): False,
        back(refused): False,
        # A row of the event may have been there, and purged.
        back(elsewhere): None,
        back(foreign): None,
        back(never): None,
        back(applied, InboxStatus.DEAD): None,
    }
    back(applied, writer="bank")
    read = inbox(spark, orders.database(), stock.database(), of=1).collect()

    assert {r.event_id: r.downstream_owes for r in read if r.kind == "ROLLBACK"} == owes
    assert {r.downstream_owes for r in read if r.kind == "COMMIT"} == {None}


def test_an_outbox_row_moves_when_it_is_due_leased_or_settled(spark, orders, stock):
    now = orders.now()
    settled = orders.write(age=60, settled_age=50, due_age=-90)
    retried = orders.write(OutboxStatus.INIT, age=60, due_age=20)
    delayed = orders.write(OutboxStatus.INIT, age=60, due_age=-90, waiting=True)
    leased = orders.write(OutboxStatus.PROCESSING, age=60, lease_until=now + MINUTE)
    forgotten = orders.write(OutboxStatus.INIT, age=60)
    found = moved_ages(orders, outbox(spark, orders.database()))
    assert found == {
        str(settled): 50,
        str(retried): 20,
        str(delayed): -90,
        str(leased): -1,
        str(forgotten): 60,
    }


def test_outbox_row_lives_as_long_as_the_retry_blocking_its_key(spark, orders, stock):
    waits = {"waiting": True, "holds_key": True}
    init = OutboxStatus.INIT
    earlier = orders.write(init, key="k")
    holder = orders.write(init, due_age=-30, key="k", **waits)
    behind = orders.write(init, key="k")
    other = orders.write(init, key="other")
    keyless = orders.write(init)
    delayed = orders.write(init, due_age=-40, key="other", waiting=True)
    after_delay = orders.write(init, key="other")
    found = moved_ages(orders, outbox(spark, orders.database()))
    assert found == {
        str(earlier): 60,
        str(holder): -30,
        str(behind): -30,
        str(other): 60,
        str(keyless): 60,
        str(delayed): -40,
        str(after_delay): 60,
    }


def test_an_inbox_row_lives_as_long_as_the_first_of_its_key(spark, orders, stock):
    def receive(status, **columns):
        return stock.receive(
            new_event_id(), status, **{"group": "reserve", "source": "orders", **columns}
        )

    done = receive(InboxStatus.PROCESSED, age=90, settled_age=80, key="k", due_age=-500)
    first = receive(InboxStatus.PROCESSING, due_age=-30, key="k")
    second = receive(InboxStatus.INIT, key="k")
    third = receive(InboxStatus.INIT, key="k")
    elsewhere = receive(InboxStatus.INIT, key="k", topic="other")
    other_group = receive(InboxStatus.INIT, key="k", group="mail")
    keyless = receive(InboxStatus.INIT)
    found = moved_ages(stock, inbox(spark, orders.database(), stock.database(), of=1))
    assert found == {
        str(done): 80,
        str(first): -30,
        str(second): -30,
        str(third): -30,
        str(elsewhere): 60,
        str(other_group): 60,
        str(keyless): 60,
    }


def test_database_and_ranges_agree_on_the_bucket_of_an_event(spark, orders):
    written = sorted(orders.write() for _ in range(40))
    strays = [orders.write(event_id=UUID(int=n)) for n in (0, (1 << 128) - 1)]
    buckets = buckets_for(3_000, [*written, *strays])
    service = orders.database()
    read = replace(row_filters.EVERYTHING, bucket=buckets.sql)
    rows = outbox_inbox.outbox(asking(spark, service), service, read).collect()
    assert len(rows) == len([*written, *strays])
    for row in rows:
        ((low, high),) = buckets.ranges([row.bucket])
        assert low is None or low <= UUID(row.event_id)
        assert high is None or UUID(row.event_id) < high


WORDS = (TOPIC, TOPIC)


def test_rows_are_read_by_their_types_and_buckets(spark, orders):
    written = [orders.write(event_id=UUID(int=n << 120)) for n in range(1, 10)]
    others = [
        orders.write(event_id=UUID(int=(n << 120) + 1), event_type="orders.noted")
        for n in range(1, 10)
    ]
    buckets = Buckets(bounds=tuple(n << 52 for n in range(1, 10)), steps=1)
    numbers = {WORDS: [0, 1, 3, 4, 9], (TOPIC, "orders.noted"): [4, 5]}
    read = outbox(spark, orders.database(), read=row_filters.by_buckets(buckets, numbers)).collect()
    found = {UUID(row.event_id): row.bucket for row in read}
    assert len(read) == len(found)
    assert {written.index(one) + 1: found[one] for one in found if one in written} == {
        1: 1,
        3: 3,
        4: 4,
        9: 9,
    }
    assert {others.index(one) + 1: found[one] for one in found if one in others} == {4: 4, 5: 5}


def test_row_read_by_id_is_in_no_bucket_that_is_read(spark, orders):
    written = [orders.write(event_id=UUID(int=n << 120)) for n in range(1, 10)]
    buckets = Buckets(bounds=tuple(n << 52 for n in range(1, 10)), steps=1)
    ids = [(str(written[1]), WORDS), (str(written[5]), WORDS)]
    chosen = row_filters.by_buckets(buckets, {WORDS: [2]}, and_ids=ids)
    read = outbox(spark, orders.database(), read=chosen).collect()
    assert {written.index(UUID(row.event_id)) + 1: row.bucket for row in read} == {2: 2, 6: None}
    assert len(read) == len(ids)


def test_row_of_another_type_than_its_bucket_is_read_by_id(spark, orders):
    written = orders.write(event_id=UUID(int=2 << 120), event_type="orders.noted")
    buckets = Buckets(bounds=tuple(n << 52 for n in range(1, 10)), steps=1)
    ids = [(str(written), (TOPIC, "orders.noted"))]
    chosen = row_filters.by_buckets(buckets, {WORDS: [2]}, and_ids=ids)
    (row,) = outbox(spark, orders.database(), read=chosen).collect()
    assert UUID(row.event_id) == written


def test_a_row_whose_id_another_event_has_too_is_read_once(spark, orders, stock):
    event_id = UUID(int=2 << 120)
    stock.receive(event_id, group="reserve", source="orders")
    stock.receive(event_id, group="reserve", source="mail", event_type="mail.sent")
    buckets = Buckets(bounds=tuple(n << 52 for n in range(1, 10)), steps=1)
    ids = [(str(event_id), (TOPIC, "mail.sent"))]
    chosen = row_filters.by_buckets(buckets, {WORDS: [2]}, and_ids=ids)
    services = (stock.database(), orders.database(), orders.database(name="mail"))
    read = inbox(spark, *services, read=chosen).collect()
    assert sorted(row.upstream for row in read) == ["mail", "orders"]


@pytest.mark.parametrize("numbers", [{}, {WORDS: []}])
def test_where_nothing_differs_and_nothing_is_odd_no_row_is_read(numbers):
    assert row_filters.by_buckets(Buckets(bounds=(0, 1), steps=1), numbers) is row_filters.NOTHING
