"""The consumer adapter on a real PostgreSQL: dedupe, attempts, retries, order, rollbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy
from shieldtx.consumer.consumer import Consumer, ConsumerSettings
from shieldtx.errors import BrokerUnavailable
from shieldtx.ports.broker import Record
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.relay.relay import Relay
from tests.support.handler_styles import STYLES
from tests.support.log_records import fields_of, logged
from tests.support.reasons import without_site
from tests.support.service import QUICK, Service, Wire, drain, effect, forget_groups, make_topics

HANDLER_STYLES = STYLES
Make = Callable[..., Service]
SLOW = RetryPolicy(max_attempts=5, first=timedelta(hours=1), longest=timedelta(hours=1), jitter=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """An upstream that writes, and a downstream that handles."""

    upstream: Service
    downstream: Service
    relay: Relay
    wire: Wire

    def consumer(self, group: str = "stock") -> Consumer:
        return self.downstream.app.build_consumer(group)

    def write(self, *keys: str | None, **more: Any) -> list[Event]:
        events = [
            Event(type="orders.placed", key=key, payload={"n": n}, **more)
            for n, key in enumerate(keys)
        ]
        with self.upstream.transaction() as session:
            self.upstream.app.outbox.add_all(session, events)
        drain(self.relay)
        return events

    def publish_again(self) -> None:
        """Deliver every record once more, as after a crash between publishing and settling."""
        self.wire.publisher().publish(list(self.wire.published), timeout=5)


@pytest.fixture
def world(make_service: Make, wire: Wire) -> World:
    upstream, downstream = make_service("orders"), make_service("stock")
    upstream.app.declare("orders.placed")
    make_topics(upstream)
    return World(upstream=upstream, downstream=downstream, relay=upstream.relay(), wire=wire)


def handle(world: World, retry: RetryPolicy = QUICK) -> dict[str, Exception | None]:
    """Declare a handler that leaves an effect, and return the mapping from keys to its errors."""
    trouble: dict[str, Exception | None] = {}

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=retry)
    def reserve(session: Session, event: Event) -> None:
        effect("reserved")(session, event)
        error = trouble.get(event.key or "")
        if error is not None:
            raise error

    return trouble


def test_effect_and_status_are_written_in_one_transaction(world: World) -> None:
    handle(world)
    world.write("a", "b")
    drain(world.consumer())
    assert sorted(world.downstream.effects()) == ["a", "b"]
    assert world.downstream.inbox() == {"PROCESSED": 2}


def test_redelivered_record_has_no_second_effect(world: World) -> None:
    handle(world)
    world.write("a", "b")
    consumer = world.consumer()
    drain(consumer)
    world.publish_again()
    done = consumer.run_once()
    assert (done.records, done.duplicates, done.fresh) == (2, 2, 0)
    assert len(world.downstream.effects()) == 2


def test_the_same_event_twice_in_one_batch_has_one_effect(world: World) -> None:
    handle(world)
    world.write("a")
    world.publish_again()
    done = world.consumer().run_once()
    assert (done.records, done.fresh, done.duplicates) == (2, 1, 1)
    assert world.downstream.effects() == ["a"]


def test_each_group_has_the_effect_once(world: World) -> None:
    handle(world)
    world.downstream.app.consumer("billing").handles("orders.placed")(effect("billed"))
    world.write("a")
    drain(world.consumer("stock"), world.consumer("billing"))
    assert world.downstream.effects("reserved") == ["a"]
    assert world.downstream.effects("billed") == ["a"]


def test_a_failed_attempt_leaves_no_trace_of_the_handler(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = ValueError("no stock")
    world.write("a")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.RETRIED: 1}
    assert world.downstream.effects() == []
    rows = world.downstream.rows("SELECT status, attempts, last_error FROM shield_inbox")
    [(*state, reason)] = rows
    assert (*state, without_site(reason)) == ("PROCESSING", 1, "ValueError: no stock")


def test_an_attempt_is_counted_before_the_handler_runs(world: World) -> None:
    seen: list[tuple[Any, ...]] = []

    @world.downstream.app.consumer("stock").handles("orders.placed")
    def check(session: Session, event: Event) -> None:
        seen.extend(world.downstream.rows("SELECT status, attempts FROM shield_inbox"))

    world.write("a")
    drain(world.consumer())
    assert seen == [("PROCESSING", 1)]


def test_waiting_retry_blocks_only_its_own_key(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = ValueError("not yet")
    world.write("a", "b", "a", "c")
    consumer = world.consumer()
    drain(consumer)
    assert sorted(world.downstream.effects()) == ["b", "c"]
    waiting = world.downstream.rows(
        "SELECT attempts FROM shield_inbox WHERE status = 'PROCESSING' ORDER BY seq"
    )
    assert waiting == [(1,), (0,)]
    assert world.downstream.inbox() == {"PROCESSING": 2, "PROCESSED": 2}
    trouble.clear()
    world.downstream.execute("UPDATE shield_inbox SET due_at = now()")
    drain(consumer)
    numbers = world.downstream.rows(
        "SELECT payload FROM shield_inbox i JOIN effects e ON e.event_id = i.event_id::text "
        "WHERE i.key = 'a' ORDER BY e.ctid"
    )
    assert numbers == [('{"n":0}',), ('{"n":2}',)]


def test_partition_continues_while_an_event_waits(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = ValueError("not yet")
    world.write("a")
    first = world.consumer()
    first.run_once()
    first.close()
    # Another worker of the group begins after the event: its offset is committed, its row is in the
    # inbox.
    second = world.consumer()
    assert second.run_once().records == 0


def test_last_attempt_writes_the_rollback_event_with_the_status(
    world: World,
) -> None:
    trouble = handle(world)
    trouble["a"] = ValueError("no stock")
    [event] = world.write("a")
    drain(world.consumer())
    assert world.downstream.inbox() == {"MAX_RECONSUMED": 1}
    [row] = world.downstream.rows(
        "SELECT event_type, topic, tx_kind, key, causation_id, causation_source, payload, status "
        "FROM shield_outbox"
    )
    assert row[:6] == ("orders.placed", "orders.placed", "ROLLBACK", "a", event.id, "orders")
    assert "no stock" in row[6]
    assert row[7] == "INIT"
    assert world.downstream.effects() == []


def test_giving_up_is_atomic_with_writing_the_rollback_event(
    world: World,
) -> None:
    trouble = handle(world)
    trouble["a"] = ValueError("no stock")
    world.write("a")
    world.downstream.execute("ALTER TABLE shield_outbox RENAME TO away")
    consumer = world.consumer()
    with pytest.raises(Exception, match="shield_outbox"):
        drain(consumer)
    assert world.downstream.inbox() == {"PROCESSING": 1}
    world.downstream.execute("ALTER TABLE away RENAME TO shield_outbox")
    world.downstream.execute("UPDATE shield_inbox SET lease_until = now()")
    drain(consumer)
    assert world.downstream.inbox() == {"MAX_RECONSUMED": 1}
    assert world.downstream.outbox() == {"INIT": 1}
    [(attempts,)] = world.downstream.rows("SELECT attempts FROM shield_inbox")
    assert attempts == QUICK.max_attempts


def test_a_refusal_is_given_up_at_once(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = Refused("not sold any more")
    world.write("a")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.REFUSED: 1}


def test_a_payload_of_another_shape_waits_for_its_next_attempt(world: World) -> None:
    @dataclass
    class Placed:
        customer: str

    world.downstream.app.consumer("stock").handles("orders.placed", payload=Placed, retry=SLOW)(
        effect("reserved")
    )
    world.write("a")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.RETRIED: 1}
    [(reason,)] = world.downstream.rows("SELECT last_error FROM shield_inbox")
    assert "payload.customer" in reason


def test_attempt_of_a_dead_process_counts_before_the_takeover(world: World) -> None:
    @world.downstream.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def die(session: Session, event: Event) -> None:
        raise SystemExit  # as kill -9 would: no code of shieldtx runs after it

    world.write("a")
    # The first attempt is part of a batch: which event killed it is unknown, so it has one run
    # more.
    for attempt in (1, *range(1, QUICK.max_attempts + 1)):
        with pytest.raises(SystemExit):
            world.consumer().run_once()
        rows = world.downstream.rows("SELECT status, attempts FROM shield_inbox")
        assert rows == [("PROCESSING", attempt)]
        assert world.consumer().run_once().outcomes == {}  # the lease has not ended
        world.downstream.execute("UPDATE shield_inbox SET lease_until = now()")
    drain(world.consumer())
    assert world.downstream.inbox() == {"MAX_RECONSUMED": 1}


@pytest.mark.plain_handlers
def test_a_zombie_handler_has_no_effect_after_a_takeover(world: World) -> None:
    consumers: list[Consumer] = []
    runs: list[int] = []

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=SLOW, alone=True)
    def reserve(session: Session, event: Event) -> None:
        effect("reserved")(session, event)

    store = world.consumer()._store
    begin = store.start_attempt

    def stall(*args: Any, **more: Any) -> Any:
        attempt = begin(*args, **more)
        runs.append(1)
        if len(runs) == 1:
            world.downstream.execute("UPDATE shield_inbox SET lease_until = now()")
            consumers.append(world.consumer())
            drain(consumers[0])
        return attempt

    zombie = world.consumer()
    zombie._store.start_attempt = stall  # type: ignore[method-assign]
    world.write("a")
    done = zombie.run_once()
    assert done.outcomes == {AttemptOutcome.LOST: 1}
    assert world.downstream.effects() == ["a"]


def test_a_batch_that_cannot_be_stored_is_delivered_again(world: World) -> None:
    handle(world)
    world.write("a", "b")
    consumer = world.consumer()
    world.downstream.execute("ALTER TABLE shield_inbox RENAME TO away")
    with pytest.raises(Exception, match="shield_inbox"):
        consumer.run_once()
    world.downstream.execute("ALTER TABLE away RENAME TO shield_inbox")
    drain(consumer)
    assert sorted(world.downstream.effects()) == ["a", "b"]


def test_undecodable_record_is_parked_with_its_bytes(
    world: World,
) -> None:
    """The partition continues."""
    handle(world)
    bad = Record(
        topic="orders.placed.commit", key=b"a", value=b"\xff\x00", headers=(("x", b"\xfe"),)
    )
    world.wire.publisher().publish([bad], timeout=5)
    world.write("a")
    done = world.consumer().run_once()
    assert (done.parked, done.fresh) == (1, 1)
    assert world.downstream.effects() == ["a"]
    [(value, headers, reason)] = world.downstream.rows(
        "SELECT record_value, record_headers, reason FROM shield_parked"
    )
    assert bytes(value) == b"\xff\x00"
    assert headers == '[["x", "/g=="]]'
    assert reason


def test_a_parked_record_is_logged_once_and_after_its_commit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    handle(world)
    world.wire.publisher().publish(
        [Record(topic="orders.placed.commit", key=b"a", value=b"?")], timeout=5
    )
    consumer = world.consumer()
    world.downstream.execute("ALTER TABLE shield_parked RENAME TO away")
    for _ in range(2):
        with pytest.raises(Exception, match="shield_parked"):
            consumer.run_once()
    assert logged(caplog.records, "record_parked") == []
    world.downstream.execute("ALTER TABLE away RENAME TO shield_parked")
    drain(consumer)
    [fields] = logged(caplog.records, "record_parked")
    [(reason,)] = world.downstream.rows("SELECT reason FROM shield_parked")
    assert (fields["group"], fields["offset"], fields["reason"]) == ("stock", 0, reason)


def test_other_event_with_a_used_business_key_is_parked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    handle(world)
    world.write("a", biz_key="order-1")
    consumer = world.consumer()
    drain(consumer)
    world.upstream.execute("DELETE FROM shield_outbox")  # purged: the upstream no longer has it
    world.write("a", biz_key="order-1")
    done = consumer.run_once()
    assert (done.fresh, done.duplicates, done.parked) == (0, 0, 1)
    [(reason,)] = world.downstream.rows("SELECT reason FROM shield_parked")
    # The key may be customer data, and the reason is logged.
    assert reason == (
        "business key of event type 'orders.placed' was received before, in another event"
    )
    assert [each["reason"] for each in logged(caplog.records, "record_parked")] == [reason]


def test_events_of_types_without_a_handler_are_skipped(world: World) -> None:
    world.upstream.app.declare("orders.noted", topic="orders.placed")
    handle(world)
    with world.upstream.transaction() as session:
        world.upstream.app.outbox.add(session, Event(type="orders.noted", key="a"))
    drain(world.relay)
    done = world.consumer().run_once()
    assert (done.ignored, done.fresh) == (1, 0)


def test_interceptors_wrap_the_handler_in_registration_order(world: World) -> None:
    calls: list[str] = []
    group = world.downstream.app.consumer("stock")

    @group.intercepts
    def outer(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        calls.append("outer in")
        proceed()
        calls.append("outer out")

    @group.intercepts
    def inner(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        calls.append("inner in")
        proceed()
        calls.append("inner out")

    @group.handles("orders.placed")
    def reserve(session: Session, event: Event) -> None:
        calls.append("handler")

    world.write("a")
    drain(world.consumer())
    assert calls == ["outer in", "inner in", "handler", "inner out", "outer out"]


def test_event_of_a_handler_joins_its_transaction_and_cause(
    world: World,
) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")
    fail = [True]

    @app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        app.outbox.add(session, Event(type="stock.reserved", key=event.key))
        if fail.pop() if fail else False:
            raise ValueError("after the event was added")

    [event] = world.write(
        "a", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    )
    drain(world.consumer())
    rows = world.downstream.rows(
        "SELECT event_type, causation_id, causation_source, traceparent FROM shield_outbox"
    )
    assert rows == [("stock.reserved", event.id, "orders", event.traceparent)]


def test_two_workers_of_a_group_cause_no_double_effects(
    world: World, eventually: Callable[..., None]
) -> None:
    handle(world)
    world.write(*(f"key-{n % 7}" for n in range(50)))
    one, two = world.consumer(), world.consumer()
    drain(one, two)
    assert len(world.downstream.effects()) == 50
    assert world.downstream.inbox() == {"PROCESSED": 50}


def test_the_database_clock_decides_when_a_retry_is_due(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = ValueError("not yet")
    world.write("a")
    drain(world.consumer())
    [(seconds,)] = world.downstream.rows(
        "SELECT extract(epoch FROM due_at - now())::float FROM shield_inbox"
    )
    assert 3590 < seconds <= 3600


def test_a_stopped_worker_leaves_the_rest_in_the_inbox(world: World) -> None:
    handle(world)
    world.write("a", "b", "c")
    stopped = world.downstream.app.build_consumer(
        "stock", stopping=lambda: sum(world.downstream.inbox().values()) > 0
    )
    stopped.run_once()
    rows = world.downstream.rows("SELECT status, attempts, lease_token FROM shield_inbox")
    assert rows == [("PROCESSING", 0, None)] * 3
    drain(world.consumer())
    assert len(world.downstream.effects()) == 3


def test_a_retry_without_delay_is_made_by_the_next_pass(world: World) -> None:
    trouble = handle(world)
    trouble["a"] = ValueError("not yet")
    world.write("a")
    consumer = world.consumer()
    consumer._due._clock = lambda: 0.0
    assert consumer.run_once().outcomes == {AttemptOutcome.RETRIED: 1}
    trouble.clear()
    assert consumer.run_once().outcomes == {AttemptOutcome.APPLIED: 1}


def test_a_pass_waits_for_records_unless_it_has_made_attempts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = handle(world)
    trouble["a"] = ValueError("not yet")
    consumer = world.consumer()
    subscriber = consumer._fetcher._fetcher._subscriber  # type: ignore[attr-defined]
    poll, timeouts = subscriber.poll, []

    def note(*, timeout: float, **limits: int) -> Any:
        timeouts.append(timeout)
        return poll(timeout=0, **limits)

    monkeypatch.setattr(subscriber, "poll", note)
    longest = consumer._settings.poll_timeout.total_seconds()
    assert not consumer.run_once().more
    world.write("a")
    consumer.run_once()
    assert timeouts == [longest, longest]
    trouble.clear()
    assert consumer.run_once().outcomes == {AttemptOutcome.APPLIED: 1}
    assert timeouts[2:] == [0]


def test_events_with_uncommitted_offsets_count_for_the_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle(world, SLOW)
    consumer = world.downstream.app.build_consumer("stock")
    # Commits at once, so that the pass fails with its commit.
    consumer._fetcher = fetcher = consumer._fetcher._fetcher  # type: ignore[attr-defined]
    consumer._backpressure._limit = 3
    consumer._backpressure._sampler._clock = lambda: 0.0
    assert consumer.run_once().paused == 0

    def refuse(records: object) -> None:
        raise BrokerUnavailable("no response to the commit")

    monkeypatch.setattr(fetcher._subscriber, "commit", refuse)
    world.write("a", "a", "a")
    with pytest.raises(BrokerUnavailable):
        consumer.run_once()
    assert consumer.run_once().paused == 1


def test_full_batches_do_not_delay_due_rows(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = ValueError("not yet")
    world.write("a")
    now = [0.0]
    consumer = world.consumer()
    consumer._clock = consumer._due._clock = lambda: now[0]
    consumer._settings = ConsumerSettings(batch_size=2)
    consumer._due._interval = 0.2
    drain(consumer)
    trouble.clear()
    world.downstream.execute("UPDATE shield_inbox SET due_at = now()")
    world.write(*"bcdefghijk")
    # The first poll is due; the next is due after as much time as without records.
    consumer.run_once()
    assert "a" in world.downstream.effects()
    looks: list[float] = []
    check = consumer._store.due

    def note(*args: Any, **more: Any) -> Any:
        looks.append(now[0])
        return check(*args, **more)

    consumer._store.due = note  # type: ignore[method-assign]
    for seconds in (0.0, 0.1, 0.1, 0.1):
        now[0] += seconds
        assert consumer.run_once().records == 2
    drain(consumer)
    assert looks[:2] == [0.0, pytest.approx(0.2)]
    assert len(world.downstream.effects()) == 11


def test_events_of_a_removed_handler_wait(world: World) -> None:
    trouble = handle(world, SLOW)
    trouble["a"] = ValueError("not yet")
    world.write("a")
    drain(world.consumer())
    forget_groups(world.downstream.app, "stock")
    world.downstream.app.consumer("stock").handles("orders.cancelled")(effect("cancelled"))
    world.downstream.execute("UPDATE shield_inbox SET due_at = now()")
    make_topics(world.downstream)
    assert not world.consumer().run_once().outcomes
    assert world.downstream.rows("SELECT attempts FROM shield_inbox") == [(1,)]


def test_the_sequence_of_arrival_is_the_order_of_the_batch(world: World) -> None:
    handle(world)
    world.write(*("same" for _ in range(30)))
    drain(world.consumer())
    rows = world.downstream.rows("SELECT payload FROM shield_inbox ORDER BY seq")
    assert [row[0] for row in rows] == [f'{{"n":{n}}}' for n in range(30)]


def test_given_up_event_is_logged_with_the_traceback_of_an_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(session: Session, event: Event) -> None:
        raise Refused("sold out") if event.key == "refused" else LookupError("no such shelf")

    once = RetryPolicy(max_attempts=1)
    world.downstream.app.consumer("stock").handles("orders.placed", retry=once)(handle)
    world.write("refused", "failed")
    caplog.set_level(logging.INFO, "shieldtx")
    drain(world.consumer())
    tracebacks = {
        (record.levelname, fields_of(record)["action"]): record.exc_info and record.exc_info[0]
        for record in caplog.records
        if fields_of(record).get("action") in {"event_given_up", "event_refused"}
    }
    assert tracebacks == {
        ("INFO", "event_refused"): None,
        ("ERROR", "event_given_up"): LookupError,
    }
