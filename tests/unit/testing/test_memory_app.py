"""The testing kit: services in memory, a clock that moves, drains that hide nothing."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.orm import Session

from shieldtx import (
    AttemptOutcome,
    ConfigurationError,
    DeliveryOutcome,
    Event,
    EventRefused,
    ForeignEvent,
    ForeignTopic,
    InboxStatus,
    LocalOutcome,
    OutboxStatus,
    ReceivedRecord,
    Refused,
    RetryPolicy,
    Settings,
    ShieldTx,
)
from shieldtx.ports.broker import Record
from shieldtx.testing import EventsFailed, MemoryApp, NotDrained, memory_app


class Order(BaseModel):
    id: int
    item: str = "lamp"


@dataclass
class Shop:
    """A service with a publisher, a handler, a compensation and a check, and what they did."""

    shield: ShieldTx
    reserved: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    failures: int = 0
    """How many attempts of the handler fail."""
    outcome: LocalOutcome = LocalOutcome.UNKNOWN

    def __post_init__(self) -> None:
        shield, stock = self.shield, self.shield.consumer("stock")
        refunds = self.shield.consumer("refunds")
        shield.declare("orders.placed", payload=Order)
        shield.declare("orders.paid")

        @shield.publishes("orders.placed", key="id", biz_key="id")
        def place(session: Session, order: Order) -> Order:
            return order

        self.place = place

        @stock.handles("orders.placed", retry=RetryPolicy(max_attempts=3, jitter=0))
        def reserve(session: Session, event: Event[Order]) -> None:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("the shelf fell over")
            if event.payload.item == "sofa":
                raise Refused("sold out")
            self.reserved.append(event.payload.id)

        @refunds.compensates("orders.placed", retry=RetryPolicy(max_attempts=1))
        def cancel(session: Session, event: Event[Order]) -> None:
            if event.payload.id == 13:
                raise RuntimeError("no refund for 13")
            self.cancelled.append(event.payload.id)

        @shield.checks("orders.paid")
        def was_paid(event: Event) -> LocalOutcome:
            return self.outcome


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    for name in ("SHIELDTX_SOURCE", "SHIELDTX_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return Shop(ShieldTx.from_env())


@pytest.fixture
def app(shop: Shop) -> Iterator[MemoryApp]:
    with memory_app(shop.shield) as entered:
        yield entered


def place(app: MemoryApp, shop: Shop, number: int, item: str = "lamp") -> Event[Order]:
    with app.session() as session:
        shop.place(session, Order(id=number, item=item))
    return app.written("orders.placed")[-1]


def test_a_whole_event_in_memory(app: MemoryApp, shop: Shop) -> None:
    event = place(app, shop, 1)
    assert event.payload == Order(id=1)
    assert app.published() == []
    done = app.drain()
    assert (done.published, done.outcomes) == (1, {AttemptOutcome.APPLIED: 1})
    assert done.waiting == []
    assert shop.reserved == [1]
    assert app.written() == []
    assert [e.payload for e in app.published("orders.placed")] == [Order(id=1)]
    state = app.state_of(event)
    assert state.outbox is OutboxStatus.PROCESSED
    assert state.inbox == {"stock": InboxStatus.PROCESSED}
    assert state.attempts == {"stock": 1}


def test_a_refusal_leads_to_the_compensation(app: MemoryApp, shop: Shop) -> None:
    event = place(app, shop, 2, "sofa")
    done = app.drain()
    assert shop.cancelled == [2]
    assert done.outcomes == {AttemptOutcome.REFUSED: 1, AttemptOutcome.COMPENSATED: 1}
    assert app.state_of(event).inbox == {"stock": InboxStatus.MAX_RECONSUMED}


def test_a_retry_waits_for_the_clock(app: MemoryApp, shop: Shop) -> None:
    shop.failures = 2
    event = place(app, shop, 1)
    done = app.drain()
    assert done.outcomes == {AttemptOutcome.RETRIED: 1}
    assert "the shelf fell over" in str(done.waiting[0])
    app.advance(timedelta(milliseconds=900))
    assert app.drain().outcomes == {}
    app.advance(timedelta(milliseconds=200))
    assert app.drain().outcomes == {AttemptOutcome.RETRIED: 1}
    app.advance(timedelta(seconds=3))
    assert app.drain().outcomes == {AttemptOutcome.APPLIED: 1}
    assert app.state_of(event).attempts == {"stock": 3}
    assert shop.reserved == [1]


def test_a_delayed_event_is_due_after_its_delay(app: MemoryApp, shop: Shop) -> None:
    began = time.monotonic()
    with app.session() as session:
        event = Event(type="orders.placed", payload=Order(id=3))
        shop.shield.outbox.add(session, event, delay=timedelta(days=3))
    app.advance(timedelta(days=2, hours=23))
    assert app.drain().published == 0
    assert [e.id for e in app.written()] == [event.id]
    app.advance(timedelta(hours=1, seconds=1))
    app.drain()
    assert shop.reserved == [3]
    assert time.monotonic() - began < 60


def test_an_event_for_a_time_is_due_then(app: MemoryApp, shop: Shop) -> None:
    with app.session() as session:
        event = Event(type="orders.placed", payload=Order(id=4))
        shop.shield.outbox.add(session, event, at=datetime.now(UTC) + timedelta(hours=1))
    app.advance(timedelta(minutes=59))
    assert app.drain().published == 0
    app.advance(timedelta(minutes=1))
    assert app.drain().published == 1


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (LocalOutcome.COMMIT, OutboxStatus.PROCESSED),
        (LocalOutcome.ROLLBACK, OutboxStatus.DISCARDED),
        (LocalOutcome.UNKNOWN, OutboxStatus.HALF),
    ],
)
def test_a_half_message_is_checked(
    app: MemoryApp, shop: Shop, outcome: LocalOutcome, status: OutboxStatus
) -> None:
    shop.outcome = outcome
    event_id = shop.shield.half_prepare("orders.paid", {"id": 5})
    assert app.drain().checked == 0
    app.advance(timedelta(seconds=7))
    assert app.drain().checked == 1
    assert app.state_of(event_id).outbox is status


def test_a_half_message_that_stays_unknown_is_a_failure(app: MemoryApp, shop: Shop) -> None:
    shop.shield.half_prepare("orders.paid", {"id": 5})
    app.advance(timedelta(hours=73))
    with pytest.raises(EventsFailed, match=r"orders.paid .*UNRESOLVED"):
        app.drain()


def test_an_event_of_another_service(app: MemoryApp, shop: Shop) -> None:
    event = app.deliver("orders.placed", Order(id=6), key="ada", source="web")
    assert shop.reserved == [6]
    assert app.state_of(event).outbox is None
    assert app.state_of(event).inbox == {"stock": InboxStatus.PROCESSED}
    assert app.published("orders.placed", shield=shop.shield) == []
    assert app.published("orders.placed")[0].source == "web"


def test_an_event_that_no_group_handles_is_an_error(app: MemoryApp) -> None:
    with pytest.raises(ConfigurationError, match=r"no group .* 'orders.plcaed'"):
        app.deliver("orders.plcaed", {"id": 1})


def test_an_event_that_no_service_could_write_is_refused(app: MemoryApp) -> None:
    with pytest.raises(EventRefused, match="key"):
        app.deliver("orders.placed", Order(id=1), key="k" * 600)


def test_a_rollback_of_another_service(app: MemoryApp, shop: Shop) -> None:
    event = place(app, shop, 7)
    app.drain()
    app.roll_back(event, reason="no courier")
    assert shop.cancelled == [7]
    with pytest.raises(ConfigurationError, match="in no outbox"):
        app.roll_back(Event(type="orders.placed"))


def test_a_dead_compensation_is_raised_once(app: MemoryApp, shop: Shop) -> None:
    event = place(app, shop, 13)
    app.drain()
    with pytest.raises(EventsFailed, match=r"DEAD, 1 attempts: .*no refund for 13"):
        app.roll_back(event)
    assert app.drain().failures == []


def test_a_second_failure_after_a_replay_is_raised(app: MemoryApp, shop: Shop) -> None:
    event = place(app, shop, 13)
    app.drain()
    with pytest.raises(EventsFailed, match="no refund for 13"):
        app.roll_back(event)
    letters = shop.shield.stores.dead_letters()
    letters.replay(letters.latest(limit=1), who="ada")
    with pytest.raises(EventsFailed, match="no refund for 13"):
        app.drain()
    assert app.drain().failures == []


def test_a_replay_that_fails_after_a_retry_is_raised(app: MemoryApp, shop: Shop) -> None:
    @shop.shield.consumer("bills").handles(
        "orders.paid", retry=RetryPolicy(max_attempts=2, then="park")
    )
    def bill(session: Session, event: Event) -> None:
        raise RuntimeError("no printer")

    event = app.deliver("orders.paid")
    app.advance(timedelta(seconds=1))
    [first] = app.drain(check=False).failures
    letters = shop.shield.stores.dead_letters()
    letters.replay(letters.find(event.id), who="ada")
    assert app.drain().outcomes == {AttemptOutcome.RETRIED: 1}
    app.advance(timedelta(seconds=1))
    assert app.drain(check=False).failures == [first]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [({"id": 1}, "KeyError: 'item'"), (5, "UnfitPayload: .*payload: Input should be an object")],
)
def test_an_event_that_a_defect_gives_up_is_raised(
    app: MemoryApp, shop: Shop, payload: object, reason: str
) -> None:
    @shop.shield.consumer("bills").handles(
        "orders.paid", payload=dict, retry=RetryPolicy(max_attempts=1)
    )
    def bill(session: Session, event: Event) -> None:
        event.payload["item"]

    with pytest.raises(EventsFailed, match=rf"group bills: MAX_RECONSUMED, .*{reason}"):
        app.deliver("orders.paid", payload)
    assert app.drain().failures == []
    app.deliver("orders.paid", payload, check=False)


def test_a_handler_that_always_fails_is_raised(app: MemoryApp, shop: Shop) -> None:
    @shop.shield.consumer("bills").handles("orders.paid", retry=RetryPolicy(max_attempts=2))
    def bill(session: Session, event: Event) -> None:
        raise RuntimeError("no printer")

    # More events than the failures after which the breaker pauses a handler.
    with app.session() as session:
        for number in range(10):
            shop.shield.outbox.add(session, Event(type="orders.paid", payload=number))
    assert len(app.drain().waiting) == 10
    app.advance(timedelta(seconds=1))
    with pytest.raises(EventsFailed, match="RuntimeError: no printer") as caught:
        app.drain()
    assert str(caught.value).count("MAX_RECONSUMED") == 10


def test_used_up_attempts_are_raised_in_each_service(shop: Shop) -> None:
    bank = ShieldTx.from_env()

    @bank.consumer("bills").handles("orders.placed", retry=RetryPolicy(max_attempts=2))
    def bill(session: Session, event: Event) -> None:
        raise RuntimeError("no printer")

    with memory_app(shop.shield, bank) as app:
        with app.session(shop.shield) as session:
            shop.place(session, Order(id=1))
        [waiting] = app.drain().waiting
        assert waiting.group == "bills"
        app.advance(timedelta(seconds=1))
        with pytest.raises(EventsFailed, match=r"in service-2, group bills: MAX_RECONSUMED"):
            app.drain()
    assert (shop.reserved, shop.cancelled) == ([1], [1])


@pytest.mark.parametrize("count", [1, 2])
def test_an_event_that_a_handler_refuses_is_no_failure(
    app: MemoryApp, shop: Shop, count: int
) -> None:
    @shop.shield.consumer("bills").handles(
        "orders.paid", retry=RetryPolicy(refuse_on=(LookupError,))
    )
    def bill(session: Session, event: Event) -> None:
        raise KeyError(event.payload)

    with app.session() as session:
        for number in range(count):
            shop.shield.outbox.add(session, Event(type="orders.paid", payload=number))
    done = app.drain()
    assert (done.outcomes, done.failures) == ({AttemptOutcome.REFUSED: count}, [])


def test_defects_of_events_in_one_transaction_are_raised(app: MemoryApp, shop: Shop) -> None:
    @shop.shield.consumer("bills").handles(
        "orders.paid", payload=dict, retry=RetryPolicy(max_attempts=1)
    )
    def bill(session: Session, event: Event) -> None:
        if not event.payload:
            raise Refused("empty")

    with app.session() as session:
        for payload in ({"id": 1}, 5, {}):
            shop.shield.outbox.add(session, Event(type="orders.paid", payload=payload))
    [row] = app.drain(check=False).failures
    assert (row.status, row.group) == (InboxStatus.MAX_RECONSUMED, "bills")


def test_no_hook_of_a_test_stays(shop: Shop) -> None:
    with memory_app(shop.shield):
        assert shop.shield.hooks.watch_consuming
    assert not shop.shield.hooks.watch_consuming


def test_a_failed_event_is_raised(app: MemoryApp, shop: Shop) -> None:
    app.broker.fail_next(DeliveryOutcome.REJECTED)
    place(app, shop, 1)
    with pytest.raises(EventsFailed, match=r"orders.placed .*FAILED") as raised:
        app.drain()
    assert [row.status for row in raised.value.result.failures] == [OutboxStatus.FAILED]


def test_a_parked_record_is_raised(app: MemoryApp) -> None:
    app.drain()
    record = Record(topic="orders.placed.commit", key=None, value=b"{}")
    app.broker.publisher().publish([record], timeout=1)
    with pytest.raises(EventsFailed, match=r"orders.placed.commit .*group stock: PARKED: offset 0"):
        app.drain()


def test_failures_are_in_the_result_without_a_check(app: MemoryApp, shop: Shop) -> None:
    app.broker.fail_next(DeliveryOutcome.REJECTED)
    place(app, shop, 1)
    done = app.drain(check=False)
    assert [row.status for row in done.failures] == [OutboxStatus.FAILED]


def test_an_outage_is_raised_and_loses_nothing(app: MemoryApp, shop: Shop) -> None:
    place(app, shop, 1)
    app.broker.go_down()
    with pytest.raises(EventsFailed, match="the broker was unavailable"):
        app.drain()
    assert [row.status for row in app.drain(check=False).waiting] == [OutboxStatus.INIT]
    app.broker.come_back()
    app.drain()
    assert shop.reserved == [1]


def test_events_without_an_end_are_an_error(app: MemoryApp, shop: Shop) -> None:
    @shop.shield.consumer("echo").handles("orders.paid")
    def again(session: Session, event: Event) -> None:
        shop.shield.outbox.add(session, Event(type="orders.paid", payload=event.payload))

    with app.session() as session:
        shop.shield.outbox.add(session, Event(type="orders.paid", payload=1))
    with pytest.raises(NotDrained, match=r"after 20 passes.*\n  orders.paid"):
        app.drain(passes=20)


def test_a_duplicate_has_one_effect(app: MemoryApp, shop: Shop) -> None:
    app.broker.duplicate_next()
    place(app, shop, 1)
    app.drain()
    assert len(app.published("orders.placed")) == 2
    assert shop.reserved == [1]


def test_two_services_share_the_broker(shop: Shop) -> None:
    web = ShieldTx.from_env()
    web.declare("orders.placed", payload=Order)
    with memory_app(web, shop.shield) as app:
        with app.session(web) as session:
            event_id = web.outbox.add(session, Event(type="orders.placed", payload=Order(id=8)))
        app.drain()
        assert shop.reserved == [8]
        assert app.state_of(event_id).outbox is OutboxStatus.PROCESSED
        assert app.published(shield=shop.shield) == []
        with pytest.raises(ConfigurationError, match="several services"), app.session():
            pass


def test_services_of_one_environment_have_distinct_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHIELDTX_SOURCE", "shop")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    one, other = ShieldTx.from_env(), ShieldTx.from_env()
    with memory_app(one, other):
        assert {one.settings.source, other.settings.source} == {"shop", "shop-2"}
    assert one.settings.source == other.settings.source == "shop"


def test_a_service_is_as_before_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIELDTX_SOURCE", "shop")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("SHIELDTX_DATABASE_SCHEMA", "messages")
    monkeypatch.setenv("SHIELDTX_BACKLOG_LIMIT", "7")
    shield = ShieldTx.from_env()
    before = shield.settings, shield.outbox, shield.engine, shield.broker
    declared = shield.declare("orders.placed")
    with memory_app(shield) as app:
        assert shield.settings.source == "shop"
        assert shield.engine.dialect.name == "sqlite"
        assert shield.broker is app.broker
        assert shield.outbox is not before[1]
        assert shield.event_types.get("orders.placed").backlog_limit == 7
    assert (shield.settings, shield.outbox, shield.engine, shield.broker) == before
    assert shield.event_types.get("orders.placed") == declared


def test_each_block_begins_without_events(shop: Shop) -> None:
    for _ in range(2):
        with memory_app(shop.shield) as app:
            assert app.published() == app.written() == []
            place(app, shop, 1)
            app.drain()
    assert shop.reserved == [1, 1]


def test_a_given_engine_stays(shop: Shop) -> None:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    given = Shop(ShieldTx.from_env(engine=engine))
    with memory_app(given.shield) as app:
        given.failures = 1
        with Session(engine) as session, session.begin():
            given.place(session, Order(id=1))
        app.drain()
        app.advance(timedelta(seconds=2))
        app.drain()
    assert given.reserved == [1]
    with engine.connect() as connection:
        ahead = datetime.fromisoformat(connection.scalar(text("SELECT datetime('now')")) + "Z")
    assert abs(datetime.now(UTC) - ahead) < timedelta(minutes=1)


def test_an_engine_with_a_database_for_each_thread_is_refused() -> None:
    shield = ShieldTx.from_env(engine=create_engine("sqlite://"))
    with pytest.raises(ConfigurationError, match="poolclass=StaticPool"), memory_app(shield):
        pass


@pytest.mark.parametrize("count", [0, 2])
def test_services_are_given_once_each(shop: Shop, count: int) -> None:
    shields = [shop.shield] * count
    with pytest.raises(ConfigurationError, match="each once"), memory_app(*shields):
        pass


def test_time_does_not_move_back(app: MemoryApp) -> None:
    with pytest.raises(ConfigurationError, match="cannot move back"):
        app.advance(timedelta(seconds=-1))


def test_the_clock_moves_all_functions_of_sqlite(app: MemoryApp) -> None:
    plain = sqlite3.connect(":memory:")
    app.advance(timedelta(days=400))
    with app.session() as session:
        for function in ("datetime('now')", "date('now', '+1 day')", "strftime('%Y', 'now')"):
            moved = session.scalar(text(f"SELECT {function}"))
            (expected,) = plain.execute(
                f"SELECT {function.replace(chr(39) + 'now' + chr(39), '?')}",
                [app.now().replace(tzinfo=None).isoformat(" ")],
            ).fetchone()
            assert moved[:10] == expected[:10]
        assert session.scalar(text("SELECT date('2020-01-31', '+1 day')")) == "2020-02-01"


def test_the_machine_does_not_move_the_clock(app: MemoryApp, shop: Shop) -> None:
    shop.failures = 1
    place(app, shop, 1)
    app.drain()
    now = app.now()
    time.sleep(1.1)
    assert app.now() == now
    assert app.drain().outcomes == {}
    app.advance(timedelta(seconds=1))
    assert app.drain().outcomes == {AttemptOutcome.APPLIED: 1}


def test_a_drain_stops_the_clock(app: MemoryApp, shop: Shop) -> None:
    seen = []

    @shop.shield.consumer("times").handles("orders.placed")
    def look(session: Session, event: Event) -> None:
        time.sleep(0.01)
        seen.append(session.scalar(text("SELECT strftime('%f', 'now')")))

    for number in (1, 2):
        place(app, shop, number)
    app.drain()
    assert len(seen) == 2
    assert len(set(seen)) == 1


def test_settings_are_not_needed_for_the_import(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="SHIELDTX_SOURCE is not set"):
        _ = shop.shield.outbox
    with memory_app(shop.shield):
        assert shop.shield.settings.source == "service-1"
    with pytest.raises(ConfigurationError, match="SHIELDTX_DATABASE_URL is not set"):
        _ = shop.shield.settings


def test_a_half_configured_environment_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIELDTX_SOURCE", "shop")
    monkeypatch.delenv("SHIELDTX_DATABASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="SHIELDTX_DATABASE_URL is not set"):
        ShieldTx.from_env()


def test_settings_are_read_at_their_first_use(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIELDTX_SOURCE", "late")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", "sqlite://")
    monkeypatch.setenv("SHIELDTX_BACKLOG_LIMIT", "7")
    assert shop.shield.outbox.source == "late"
    assert shop.shield.event_types.get("orders.placed").backlog_limit == 7


def test_the_trace_of_a_service_has_nothing_of_a_test(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/service.db"
    shop = Shop(ShieldTx(Settings(source="shop", database_url=url, trace=True)))
    shop.shield.schema.upgrade()
    tracer = shop.shield.tracer
    with memory_app(shop.shield) as app:
        place(app, shop, 1)
        app.drain()
    tracer.flush()
    with shop.shield.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shield_trace")) == 0
    shop.shield.close()


def test_records_of_a_foreign_topic_are_delivered(app: MemoryApp, shop: Shop) -> None:
    def decode(record: ReceivedRecord) -> ForeignEvent | None:
        if record.value is None:
            return None
        return ForeignEvent(payload=json.loads(record.value), id="7")

    received: list[tuple[object, str | None]] = []
    legacy = ForeignTopic("legacy.orders", decode=decode)

    @shop.shield.consumer("legacy").handles("legacy.order", topic=legacy)
    def handle(session: Session, event: Event) -> None:
        received.append((event.payload, event.key))

    assert app.deliver_record("legacy.orders", None, key=b"k").outcomes == {}
    for _ in range(2):
        app.deliver_record("legacy.orders", b'{"no": 7}', key=b"k", headers={"a": b"b"})
    assert received == [({"no": 7}, "k")]
    with pytest.raises(EventsFailed, match="PARKED"):
        app.deliver_record("legacy.orders", b"no JSON")


def test_record_for_a_topic_that_nothing_reads_is_refused(app: MemoryApp) -> None:
    with pytest.raises(ConfigurationError, match=r"no group .* reads foreign topic 'elsewhere'"):
        app.deliver_record("elsewhere", b"{}")


def test_record_that_is_no_bytes_is_refused_and_not_written(app: MemoryApp, shop: Shop) -> None:
    legacy = ForeignTopic("legacy.orders", decode=lambda record: None)
    shop.shield.consumer("legacy").handles("legacy.order", topic=legacy)(
        lambda session, event: None
    )
    with pytest.raises(ConfigurationError, match="value of the record must be bytes, not 'text'"):
        app.deliver_record("legacy.orders", "text")  # type: ignore[arg-type]
    assert app.deliver_record("legacy.orders", b"{}").outcomes == {}
