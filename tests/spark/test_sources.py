"""What is read from a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import Row
from sqlalchemy import make_url, text

from shieldtx.events import new_event_id
from shieldtx.reconcile.request import Flow
from shieldtx.states import InboxStatus, OutboxStatus, TxKind
from spark import sources

MINUTE = timedelta(minutes=1)


def flow(orders, stock):
    return Flow(kind=TxKind.COMMIT, upstream=orders.database(), downstream=stock.database())


def moved_ages(service, frame):
    """Return by event how many minutes ago it last moved; negative: it is due to."""
    now = service.now()
    return {
        row.event_id: round((now - row.moved_at.astimezone(now.tzinfo)) / MINUTE)
        for row in frame.collect()
    }


def test_the_clock_is_that_of_the_database(spark, orders):
    before = orders.now()
    clock = sources.clock(spark, orders.database(retention=MINUTE))
    assert before <= clock.now <= orders.now()
    assert (clock.service, clock.retention, clock.obstacle) == ("orders", MINUTE, "")
    assert clock.oldest_transaction is None


def test_the_clock_knows_since_when_the_oldest_transaction_runs(spark, orders):
    with orders.engine.connect() as first, orders.engine.connect() as second:
        began = first.scalar(text("SELECT now()"))
        second.execute(text("SELECT 1"))
        assert sources.clock(spark, orders.database()).oldest_transaction == began


def test_transactions_of_other_databases_do_not_count(spark, orders, stock):
    with stock.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert sources.clock(spark, orders.database()).oldest_transaction is None


@pytest.fixture
def reader(orders):
    """A role that may read the tables and nothing else, and the URL with which it does."""
    role = f"reader_{new_event_id().hex}"
    with orders.engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'reads'"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    url = make_url(orders.url).set(username=role, password="reads")
    yield role, url.render_as_string(hide_password=False)
    with orders.engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_a_role_that_cannot_see_the_transactions_of_others_says_so(spark, orders, reader):
    role, url = reader
    with orders.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert (
            f"GRANT pg_read_all_stats TO {role}"
            in sources.clock(spark, orders.database(url=url)).obstacle
        )
    with orders.engine.begin() as connection:
        connection.execute(text(f"GRANT pg_read_all_stats TO {role}"))
    with orders.engine.connect() as connection:
        began = connection.scalar(text("SELECT now()"))
        clock = sources.clock(spark, orders.database(url=url))
    assert (clock.obstacle, clock.oldest_transaction) == ("", began)


def test_a_replica_cannot_tell_which_transactions_run_on_its_primary(orders):
    answer = Row(is_replica=True, hidden_sessions=0, role="postgres")
    assert "replica" in sources._obstacle(orders.database(), answer)


def test_reading_tables_takes_the_right_to_select_and_nothing_else(spark, orders, stock, reader):
    event = orders.write()
    reading = Flow(
        kind=TxKind.COMMIT,
        upstream=orders.database(url=reader[1]),
        downstream=stock.database(),
    )
    assert [row.event_id for row in sources.outbox(spark, reading).collect()] == [str(event)]


def test_the_session_cannot_write(spark, orders):
    with pytest.raises(Exception, match="read-only transaction"):
        sources._read(
            spark, orders.database(), "(SELECT setval('shield_outbox_seq_seq', 1)) AS w"
        ).collect()


def test_each_row_is_read_once_over_all_parts(spark, orders, stock):
    written = {str(orders.write()) for _ in range(23)}
    frame = sources.outbox(spark, flow(orders, stock))
    read = [row.event_id for row in frame.collect()]
    assert frame.rdd.getNumPartitions() == sources.PARTITIONS
    assert len(read) == 23
    assert set(read) == written


def test_no_payload_and_no_key_leaves_the_database(spark, orders, stock):
    for frame in (
        sources.outbox(spark, flow(orders, stock)),
        sources.inbox(spark, flow(orders, stock)),
    ):
        assert not {"payload", "headers", "key", "biz_key"} & set(frame.columns)


def test_only_the_events_of_the_flow_are_read(spark, orders, stock):
    event, rollback = orders.write(), stock.write(kind=TxKind.ROLLBACK, causation_source="orders")
    stock.write(kind=TxKind.ROLLBACK, causation_source="elsewhere")
    stock.write()
    stock.receive(event, group="reserve", source="orders")
    stock.receive(new_event_id(), group="reserve", source="elsewhere")
    stock.receive(
        new_event_id(),
        group="reserve",
        source="orders",
        kind=TxKind.ROLLBACK,
        causation_source="orders",
    )
    orders.receive(
        rollback, group="refund", source="stock", kind=TxKind.ROLLBACK, causation_source="orders"
    )
    forth = flow(orders, stock)
    back = Flow(kind=TxKind.ROLLBACK, upstream=forth.downstream, downstream=forth.upstream)

    def ids(frame):
        return [row.event_id for row in frame.collect()]

    assert ids(sources.outbox(spark, forth)) == [str(event)]
    assert ids(sources.inbox(spark, forth)) == [str(event)]
    assert ids(sources.outbox(spark, back)) == [str(rollback)]
    assert ids(sources.inbox(spark, back)) == [str(rollback)]
    assert [s.event_type for s in sources.types_sent(spark, back)] == ["orders.placed"]
    assert [r.group for r in sources.types_received(spark, back)] == ["refund"]


def test_an_outbox_row_moves_when_it_is_due_leased_or_settled(spark, orders, stock):
    now = orders.now()
    settled = orders.write(age=60, settled_age=50, due_age=-90)
    retried = orders.write(OutboxStatus.INIT, age=60, due_age=20)
    delayed = orders.write(OutboxStatus.INIT, age=60, due_age=-90, waiting=True)
    leased = orders.write(OutboxStatus.PROCESSING, age=60, lease_until=now + MINUTE)
    forgotten = orders.write(OutboxStatus.INIT, age=60)
    found = moved_ages(orders, sources.outbox(spark, flow(orders, stock)))
    assert found == {
        str(settled): 50,
        str(retried): 20,
        str(delayed): -90,
        str(leased): -1,
        str(forgotten): 60,
    }


def test_an_outbox_row_lives_as_long_as_the_retry_that_holds_its_key(spark, orders, stock):
    waits = {"waiting": True, "holds_key": True}
    init = OutboxStatus.INIT
    earlier = orders.write(init, key="k")
    holder = orders.write(init, due_age=-30, key="k", **waits)
    behind = orders.write(init, key="k")
    other = orders.write(init, key="other")
    keyless = orders.write(init)
    delayed = orders.write(init, due_age=-40, key="other", waiting=True)
    after_delay = orders.write(init, key="other")
    found = moved_ages(orders, sources.outbox(spark, flow(orders, stock)))
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
    found = moved_ages(stock, sources.inbox(spark, flow(orders, stock)))
    assert found == {
        str(done): 80,
        str(first): -30,
        str(second): -30,
        str(third): -30,
        str(elsewhere): 60,
        str(other_group): 60,
        str(keyless): 60,
    }
