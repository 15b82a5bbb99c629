"""The defects of ShieldTXC, each as a test that shieldtx does not have it.

Where other tests cover the behaviour in depth, the test here is its shortest form, under the name
of the defect.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.consumer.consumer import Consumer
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.relay.relay import Relay
from tests.support.service import QUICK, Service, Wire, answer, drain, effect, make_topics

Make = Callable[..., Service]


@pytest.fixture
def orders(make_service: Make) -> Service:
    service = make_service("orders")
    service.app.declare("orders.placed", retry=QUICK)
    make_topics(service)
    return service


@pytest.fixture
def stock(make_service: Make, orders: Service) -> Service:
    return make_service("stock")


def place(service: Service, *keys: str) -> list[Event]:
    events = [Event(type="orders.placed", key=key, payload={"key": key}) for key in keys]
    with service.transaction() as session:
        service.app.outbox.add_all(session, events)
    return events


def consumer(service: Service) -> Consumer:
    return service.app.build_consumer("stock")


def test_defect_sent_although_the_claim_failed(orders: Service, wire: Wire) -> None:
    place(orders, "a")
    one, two = orders.relay("one"), orders.relay("two")
    other = Relay.run_once
    assert other(two).claimed == 0
    assert wire.published == []
    assert one.run_once().published == 1


def test_defect_marked_processed_although_the_send_failed(orders: Service, wire: Wire) -> None:
    place(orders, "a")
    for outcome in (
        DeliveryOutcome.UNSENT,
        DeliveryOutcome.UNCONFIRMED,
        DeliveryOutcome.REFUSED,
        DeliveryOutcome.REJECTED,
    ):
        orders.execute(
            "UPDATE shield_outbox SET status = 'INIT', settled_at = NULL, waiting = false"
        )
        wire.fate = lambda record, outcome=outcome: answer(outcome)
        orders.relay().run_once()
        assert "PROCESSED" not in orders.outbox(), outcome
        orders.execute("UPDATE shield_shard SET owner = NULL")


def test_defect_rows_in_processing_after_a_crash_stay_for_ever(
    make_service: Make, wire: Wire, eventually: Callable[..., None]
) -> None:
    # Short, for a quick takeover; long enough for a pass on a busy machine.
    orders = make_service("orders", relay_lease=3.0, relay_send_timeout=0.5)
    orders.app.declare("orders.placed")
    make_topics(orders)
    place(orders, "a")

    def crash() -> None:
        raise SystemExit

    wire.before_publish = crash
    with pytest.raises(SystemExit):
        orders.relay("dead").run_once()
    wire.before_publish = lambda: None
    heir = orders.app.build_relay("heir")
    eventually(lambda: bool(heir.renew().shards) and heir.run_once().published == 1, "taken over")


def test_defect_the_success_path_ends_in_reconsume_later(orders: Service, stock: Service) -> None:
    stock.app.consumer("stock").handles("orders.placed")(effect("reserved"))
    place(orders, "a")
    drain(orders.relay())
    first = consumer(stock)
    drain(first)
    first.close()
    again = consumer(stock)
    assert again.run_once().records == 0  # offset committed: no second delivery


def test_defect_success_on_a_retry_is_later_rolled_back(orders: Service, stock: Service) -> None:
    tries: list[int] = []

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        effect("reserved")(session, event)

    place(orders, "a")
    drain(orders.relay(), consumer(stock))
    assert stock.effects() == ["a"]
    assert stock.outbox() == {}


def test_defect_duplicates_found_by_text_are_handled_anyway(
    orders: Service, stock: Service, wire: Wire
) -> None:
    stock.app.consumer("stock").handles("orders.placed")(effect("reserved"))
    place(orders, "a")
    worker = consumer(stock)
    drain(orders.relay(), worker)
    wire.publisher().publish(list(wire.published), timeout=5)
    drain(worker)
    assert stock.effects() == ["a"]


def test_defect_error_text_about_duplicates_counts_as_duplicate(
    orders: Service, stock: Service
) -> None:
    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        raise ValueError("Duplicate entry 'a' for key 'PRIMARY'")

    place(orders, "a")
    drain(orders.relay(), consumer(stock))
    assert stock.inbox() == {"MAX_RECONSUMED": 1}


def test_defect_row_number_of_producer_is_key_of_consumer(
    make_service: Make, orders: Service, stock: Service
) -> None:
    # Two upstreams whose rows have the same numbers.
    returns = make_service("returns")
    returns.app.declare("orders.placed", topic="orders.placed")
    stock.app.consumer("stock").handles("orders.placed")(effect("reserved"))
    place(orders, "a")
    place(returns, "b")
    assert orders.rows("SELECT seq FROM shield_outbox") == returns.rows(
        "SELECT seq FROM shield_outbox"
    )
    drain(orders.relay(), returns.relay(), consumer(stock))
    assert sorted(stock.effects()) == ["a", "b"]


def test_defect_insert_handler_and_status_in_three_transactions(
    orders: Service, stock: Service
) -> None:
    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        effect("reserved")(session, event)
        # Outside the transaction no row is visible yet, and no process can take the row over.
        assert stock.inbox() == {"PROCESSING": 1}
        assert stock.effects() == []
        assert stock.rows("SELECT 1 FROM shield_inbox FOR UPDATE SKIP LOCKED") == []

    place(orders, "a")
    drain(orders.relay(), consumer(stock))
    assert stock.inbox() == {"PROCESSED": 1}
    [status_by] = stock.rows("SELECT xmin::text FROM shield_inbox")
    [effect_by] = stock.rows("SELECT xmin::text FROM effects")
    assert status_by == effect_by


def test_defect_last_attempt_and_rollback_in_two_transactions(
    orders: Service, stock: Service
) -> None:
    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        raise ValueError("never")

    place(orders, "a")
    stock.execute("ALTER TABLE shield_outbox ADD CONSTRAINT no_more CHECK (false) NOT VALID")
    with pytest.raises(Exception, match="no_more"):
        drain(orders.relay(), consumer(stock))
    assert stock.inbox() == {"PROCESSING": 1}


@pytest.mark.parametrize("table", ["shield_inbox", "shield_outbox"])
def test_defect_unique_key_has_status_or_nullable_column(orders: Service, table: str) -> None:
    inspector = inspect(orders.engine)
    nullable = {c["name"] for c in inspector.get_columns(table) if c["nullable"]}
    unique = [i for i in inspector.get_indexes(table) if i["unique"]]
    assert unique
    for index in unique:
        columns = set(index["column_names"])
        assert "status" not in columns
        # A column that may be NULL is in no key, unless the key covers only rows with a value.
        partial = index.get("dialect_options", {}).get("postgresql_where")
        assert partial or not columns & nullable, index["name"]


def test_defect_a_poison_row_stops_the_sweep(orders: Service, wire: Wire) -> None:
    place(orders, "poison", "a", "b")
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED) if record.key == b"poison" else None
    done = orders.relay().run_once()
    assert (done.published, done.failed) == (2, 1)


def test_defect_limit_without_order_by(make_service: Make, wire: Wire) -> None:
    service = make_service("orders", relay_batch_size=3, shards=1)
    service.app.declare("orders.placed")
    make_topics(service)
    place(service, *("same" for _ in range(10)))
    # Newer versions of the first rows lie at the end of the table.
    service.execute("UPDATE shield_outbox SET last_error = 'touched' WHERE seq <= 5")
    drain(service.relay())
    sent = [dict(record.headers)["ce_id"].decode() for record in wire.published]
    written = service.rows("SELECT event_id FROM shield_outbox ORDER BY seq")
    assert sent == [str(event_id) for (event_id,) in written]


def test_planned_long_unsent_events_trigger_the_local_rollback(orders: Service, wire: Wire) -> None:
    orders.app.local_rollback("orders.placed")(effect("undone"))
    place(orders, "a")
    relay = orders.relay()
    wire.fate = lambda record: answer(DeliveryOutcome.REFUSED)
    drain(relay)
    assert orders.outbox() == {"FAILED": 1}
    assert orders.effects("undone") == ["a"]
