"""First attempts that share a transaction: an event does not affect the others of its batch."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from sqlalchemy import String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shieldtx import Event, Refused, RetryPolicy, new_event_id
from shieldtx.consumer.consumer import LONGEST_PASS
from shieldtx.domain.events import Envelope
from shieldtx.errors import ShieldTxError
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Attempt, AttemptOutcome, IncomingEvent
from shieldtx.store.inbox_store import SqlInboxStore
from tests.integration.consumer.test_consumer import SLOW, Make, World
from tests.support.lanes import executor_of
from tests.support.reasons import without_site
from tests.support.service import QUICK, Wire, drain, effect, make_topics

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def world(make_service: Make, wire: Wire) -> World:
    # Many events fail here, each for itself: the breaker would pause the handler.
    upstream, downstream = make_service("orders"), make_service("stock", consumer_breaker=0)
    upstream.app.declare("orders.placed")
    upstream.app.declare("orders.paid", topic="orders.placed")
    make_topics(upstream)
    return World(upstream=upstream, downstream=downstream, relay=upstream.relay(), wire=wire)


class Calls:
    """A handler that records its calls, and fails for the keys that a test chooses."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.transactions: list[int] = []
        self.trouble: dict[str, Callable[[Session], object]] = {}

    def one(self, session: Session, event: Event) -> None:
        self.keys.append(event.key)
        self.transactions.append(session.scalar(text("SELECT txid_current()")))
        effect("done")(session, event)
        if event.key in self.trouble:
            self.trouble[event.key](session)

    def many(self, session: Session, events: Sequence[Event]) -> None:
        for event in events:
            self.one(session, event)


def raises(error: Exception) -> Callable[[Session], None]:
    def act(session: Session) -> None:
        raise error

    return act


@pytest.fixture(params=["one", "many"])
def calls(request: pytest.FixtureRequest, world: World) -> Calls:
    """The calls of a handler that takes one event, or a list."""
    made = Calls()
    group = world.downstream.app.consumer("stock")
    if request.param == "one":
        group.handles("orders.placed", retry=SLOW)(made.one)
    else:
        group.handles_many("orders.placed", retry=SLOW)(made.many)
    return made


def state(world: World) -> list[tuple[Any, ...]]:
    return world.downstream.rows("SELECT key, status, attempts FROM shield_inbox ORDER BY seq")


def test_events_of_one_poll_share_a_transaction(world: World, calls: Calls) -> None:
    world.write(*"abcdef")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 6}
    assert len(set(calls.transactions)) == 1
    assert Counter(calls.keys) == Counter("abcdef")
    assert world.downstream.inbox() == {"PROCESSED": 6}


class Order(BaseModel):
    """The payload of the events of this module."""

    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize("alone", [False, True])
def test_payloads_are_freed_at_once_without_garbage_collection(world: World, alone: bool) -> None:
    kept: list[weakref.ref[Order]] = []

    def note(session: Session, event: Event) -> None:
        kept.append(weakref.ref(event.payload))

    group = world.downstream.app.consumer("stock")
    group.handles("orders.placed", payload=Order, alone=alone)(note)
    world.write(*"abc")
    consumer = world.consumer()
    gc.collect()
    gc.disable()
    try:
        consumer.run_once()
        assert [payload() for payload in kept] == [None] * 3
    finally:
        gc.enable()


def test_a_failure_undoes_no_neighbour_and_costs_none_an_attempt(
    world: World, calls: Calls
) -> None:
    calls.trouble["c"] = raises(ValueError("not today"))
    world.write(*"abcdef")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 5, AttemptOutcome.RETRIED: 1}
    assert sorted(world.downstream.effects()) == list("abdef")
    expected = [(k, "PROCESSING" if k == "c" else "PROCESSED", 1) for k in "abcdef"]
    assert sorted(state(world)) == expected
    [(reason,)] = world.downstream.rows("SELECT last_error FROM shield_inbox WHERE key = 'c'")
    assert without_site(reason) == "ValueError: not today"


def test_pass_of_slow_handlers_ends_in_time_and_next_continues(world: World) -> None:
    now = [0.0]

    def take_a_while(session: Session, event: Event) -> None:
        now[0] += LONGEST_PASS / 4
        effect("stock")(session, event)

    world.downstream.app.consumer("stock").handles("orders.placed")(take_a_while)
    consumer = world.consumer()
    consumer._clock = executor_of(consumer)._clock = lambda: now[0]
    world.write(*"abcdefghij")
    consumer.run_once()
    # The executor completes the transaction that runs when the time is up.
    assert now[0] <= LONGEST_PASS * 2
    assert world.downstream.inbox()["PROCESSED"] < 10
    passes = 1
    while world.downstream.inbox() != {"PROCESSED": 10}:
        began = now[0]
        consumer.run_once()
        assert LONGEST_PASS * 0.5 <= now[0] - began <= LONGEST_PASS * 1.25
        passes += 1
    assert passes <= 4
    assert {attempts for _, _, attempts in state(world)} == {1}
    assert Counter(world.downstream.effects()) == Counter("abcdefghij")


def test_every_failure_of_many_is_found(world: World, calls: Calls) -> None:
    for key in "adf":
        calls.trouble[key] = raises(ValueError(key))
    world.write(*"abcdefgh")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 5, AttemptOutcome.RETRIED: 3}
    assert sorted(world.downstream.effects()) == list("bcegh")
    assert {attempts for _, _, attempts in state(world)} == {1}


def test_batch_in_which_every_event_fails_completes(world: World, calls: Calls) -> None:
    keys = [f"k{n}" for n in range(120)]
    calls.trouble = dict.fromkeys(keys, raises(ValueError("no")))
    world.write(*keys)
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.RETRIED: 120}
    assert {(status, attempts) for _, status, attempts in state(world)} == {("PROCESSING", 1)}


def test_later_events_of_a_failed_key_wait_and_are_not_counted(world: World, calls: Calls) -> None:
    calls.trouble["a"] = raises(ValueError("not yet"))
    world.write("b", "a", "c", "a", "a", "d")
    consumer = world.consumer()
    drain(consumer)
    assert sorted(world.downstream.effects()) == ["b", "c", "d"]
    assert [row for row in state(world) if row[0] == "a"] == [
        ("a", "PROCESSING", 1),
        ("a", "PROCESSING", 0),
        ("a", "PROCESSING", 0),
    ]
    calls.trouble.clear()
    world.downstream.execute("UPDATE shield_inbox SET due_at = now()")
    drain(consumer)
    assert world.downstream.inbox() == {"PROCESSED": 6}
    in_order = world.downstream.rows(
        "SELECT i.payload FROM shield_inbox i JOIN effects e ON e.event_id = i.event_id::text "
        "WHERE i.key = 'a' ORDER BY e.ctid"
    )
    assert in_order == [('{"n":1}',), ('{"n":3}',), ('{"n":4}',)]


def test_a_refusal_blocks_no_other(world: World, calls: Calls) -> None:
    refusals = [Refused("not this one")]

    def refuse_once(session: Session) -> None:
        if refusals:
            raise refusals.pop()

    calls.trouble["a"] = refuse_once
    world.write("a", "a", "b")
    # A list is retried in two halves, so its first failure does not count for a single event.
    refusals *= 3
    world.consumer().run_once()
    assert world.downstream.inbox()["PROCESSED"] >= 1
    assert not world.downstream.rows("SELECT 1 FROM shield_inbox WHERE settled_at IS NULL")


def test_killing_event_costs_its_batch_no_attempts(world: World) -> None:
    killed: list[str | None] = []

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=ONCE)
    def die(session: Session, event: Event) -> None:
        effect("done")(session, event)
        if event.key == "c":
            killed.append(event.key)
            raise SystemExit  # as kill -9 would: no code of shieldtx runs after it

    world.write(*"abcde")
    consumer = world.consumer()
    with pytest.raises(SystemExit):
        consumer.run_once()
    assert {row[1:] for row in state(world)} == {("PROCESSING", 1)}
    for _ in range(2):
        world.downstream.execute("UPDATE shield_inbox SET lease_until = now()")
        try:
            drain(world.consumer())
        except SystemExit:
            continue
    assert sorted(state(world)) == [
        (k, "MAX_RECONSUMED" if k == "c" else "PROCESSED", 1) for k in "abcde"
    ]
    assert sorted(world.downstream.effects()) == list("abde")
    # One run more than the policy allows: the first run does not show which event killed the
    # process.
    assert len(killed) == ONCE.max_attempts + 1


def test_both_parts_of_a_batch_received_in_parts_are_applied(world: World, calls: Calls) -> None:
    world.downstream.execute(
        "ALTER TABLE shield_inbox ADD CONSTRAINT no_d CHECK (key IS DISTINCT FROM 'd')"
    )
    world.write(*"abcdefgh")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 7}
    assert Counter(calls.keys) == Counter("abcefgh")
    assert world.downstream.inbox() == {"PROCESSED": 7}


def test_events_before_an_unstorable_record_are_applied(world: World, calls: Calls) -> None:
    stock = world.downstream
    stock.execute("ALTER TABLE shield_inbox ADD CONSTRAINT no_g CHECK (key IS DISTINCT FROM 'g')")
    stock.execute("ALTER TABLE shield_parked ADD CONSTRAINT nothing CHECK (false)")
    world.write(*"abcdefgh")
    consumer = world.consumer()
    with pytest.raises(ShieldTxError, match="cannot be stored"):
        consumer.run_once()
    # `g` comes last: its partition is not the partition of the others.
    assert Counter(calls.keys) == Counter("abcdefh")
    assert stock.inbox() == {"PROCESSED": 7}
    stock.execute("ALTER TABLE shield_inbox DROP CONSTRAINT no_g")
    drain(consumer)
    assert Counter(calls.keys) == Counter("abcdefgh")


def test_a_batch_received_in_part_is_read_again_after_an_exit(world: World) -> None:
    stock, done, exits = world.downstream, effect("done"), iter([SystemExit(4)])

    @stock.app.consumer("stock").handles("orders.placed")
    def handle(session: Session, event: Event) -> None:
        if status := next(exits, None):
            raise status
        done(session, event)

    stock.execute("ALTER TABLE shield_inbox ADD CONSTRAINT no_g CHECK (key IS DISTINCT FROM 'g')")
    stock.execute("ALTER TABLE shield_parked ADD CONSTRAINT nothing CHECK (false)")
    world.write(*"abcdefgh")
    consumer = world.consumer()
    with pytest.raises(SystemExit):
        consumer.run_once()
    stock.execute("ALTER TABLE shield_inbox DROP CONSTRAINT no_g")
    stock.execute("UPDATE shield_inbox SET lease_until = now()")
    drain(consumer)
    assert Counter(stock.effects()) == Counter("abcdefgh")


def test_a_worker_that_lost_its_batch_leaves_no_effect(world: World, calls: Calls) -> None:
    zombie = world.consumer()
    execute = executor_of(zombie).execute

    def stall(attempts: Sequence[Attempt]) -> Counter[AttemptOutcome]:
        world.downstream.execute("UPDATE shield_inbox SET lease_until = now() WHERE key <> 'c'")
        drain(world.consumer())
        return execute(attempts)

    executor_of(zombie).execute = stall  # type: ignore[method-assign]
    world.write(*"abc")
    done = zombie.run_once()
    # The worker still owns the row that no other worker took over.
    assert done.outcomes == {AttemptOutcome.BLOCKED: 2, AttemptOutcome.APPLIED: 1}
    assert sorted(world.downstream.effects()) == list("abc")
    assert {row[1:] for row in state(world)} == {("PROCESSED", 1)}


def test_batch_is_blocked_by_rows_of_another_worker(
    world: World, eventually: Callable[..., None]
) -> None:
    earlier, later, other = (
        Envelope(
            id=new_event_id(),
            type="orders.placed",
            source="orders",
            topic="orders.placed",
            payload="{}",
            time=datetime.now(UTC),
            key=key,
        )
        for key in ("a", "a", "b")
    )

    def arrivals(*envelopes: Envelope, lease: timedelta | None) -> list[IncomingEvent]:
        record = ReceivedRecord(topic="t", partition=0, offset=0, key=b"", value=b"", headers=())
        return [IncomingEvent(envelope=e, record=record, lease=lease) for e in envelopes]

    engine = world.downstream.engine
    store = SqlInboxStore(engine, world.downstream.app.tables)
    waiting = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with ThreadPoolExecutor(1) as beside, engine.connect() as first:
        store._receiver.receive(first, "stock", arrivals(earlier, lease=None), [])
        batch = arrivals(earlier, later, other, lease=timedelta(minutes=1))
        second = beside.submit(store.receive, "stock", batch, [])
        eventually(lambda: world.downstream.rows(waiting) != [], "the batch waits for the row")
        first.commit()
        receipt = second.result(30)
    assert [attempt.envelope.id for attempt in receipt.started] == [other.id]
    assert [e.id for e in receipt.fresh] == [later.id, other.id]
    assert state(world) == [("a", "INIT", 0), ("a", "PROCESSING", 0), ("b", "PROCESSING", 1)]
    attempts = [
        store.start_attempt("stock", e, lease=timedelta(minutes=1), max_attempts=3)
        for e in (later, earlier)
    ]
    assert [attempt is not None for attempt in attempts] == [False, True]


def test_error_at_the_commit_fails_only_its_event(
    world: World,
) -> None:
    world.downstream.execute(
        "CREATE TABLE slots (key text UNIQUE DEFERRABLE INITIALLY DEFERRED, event_id text)"
    )

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=SLOW)
    def book(session: Session, event: Event) -> None:
        slot = {"key": "same" if event.key in {"b", "d"} else event.key, "id": str(event.id)}
        session.execute(text("INSERT INTO slots VALUES (:key, :id)"), slot)

    world.write(*"abcde")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 4, AttemptOutcome.RETRIED: 1}
    [failed] = [row for row in state(world) if row[1] == "PROCESSING"]
    assert failed[0] in {"b", "d"}
    assert failed[2] == 1


def test_a_handler_that_spoils_the_transaction_fails_alone(world: World, calls: Calls) -> None:
    def swallow(session: Session) -> None:
        with pytest.raises(Exception, match="division by zero"):
            session.execute(text("SELECT 1 / 0"))

    calls.trouble |= {"b": Session.commit, "c": swallow, "d": Session.rollback}
    world.write(*"abcde")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 2, AttemptOutcome.RETRIED: 3}
    assert sorted(world.downstream.effects()) == ["a", "e"]


@pytest.mark.parametrize(
    "left",
    [
        "CREATE TEMPORARY TABLE basket (n int) ON COMMIT DROP",
        "SET LOCAL shop.tenant = 'the first'",
        # Long enough for the statement that settles the event of this handler.
        "SET LOCAL statement_timeout = '1s'",
    ],
)
def test_transaction_state_of_a_handler_fails_no_other_event(world: World, left: str) -> None:
    slow_where_limited = "SELECT pg_sleep(3) WHERE current_setting('statement_timeout') <> '0'"

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=ONCE)
    def work(session: Session, event: Event) -> None:
        session.execute(text(slow_where_limited))
        tenant = session.scalar(text("SELECT current_setting('shop.tenant', true)"))
        if tenant:
            raise LookupError(tenant)
        effect("done")(session, event)
        session.execute(text(left))

    world.write(*"abcd")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 4}
    assert sorted(world.downstream.effects()) == list("abcd")


def test_handler_that_makes_transaction_read_only_fails_alone(world: World) -> None:
    @world.downstream.app.consumer("stock").handles("orders.placed", retry=ONCE)
    def work(session: Session, event: Event) -> None:
        effect("done")(session, event)
        if event.key == "b":
            session.execute(text("SET TRANSACTION READ ONLY"))

    world.write(*"abcd")
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 3, AttemptOutcome.REFUSED: 1}
    assert sorted(world.downstream.effects()) == list("acd")


def test_swallowed_database_error_fails_the_attempt(
    world: World,
) -> None:
    @world.downstream.app.consumer("stock").handles("orders.placed", retry=SLOW, alone=True)
    def swallow(session: Session, event: Event) -> None:
        effect("done")(session, event)
        with pytest.raises(Exception, match="division by zero"):
            session.execute(text("SELECT 1 / 0"))

    world.write("a")
    assert world.consumer().run_once().outcomes == {AttemptOutcome.RETRIED: 1}
    [(reason,)] = world.downstream.rows("SELECT last_error FROM shield_inbox")
    assert "went on after an error of the database" in reason


class Base(DeclarativeBase):
    """The base of the tables that the following handlers write."""


class Counted(Base):
    __tablename__ = "counted"

    key: Mapped[str] = mapped_column(String, primary_key=True)
    times: Mapped[int]


def test_each_event_gets_a_fresh_session(world: World) -> None:
    Base.metadata.create_all(world.downstream.engine)
    world.downstream.execute("INSERT INTO counted VALUES ('a', 0)")
    seen: list[int] = []
    kept: list[Any] = []

    @world.downstream.app.consumer("stock").handles("orders.placed")
    def count(session: Session, event: Event) -> None:
        assert not any(row in session for row in kept)
        row = session.get(Counted, "a")
        assert row is not None
        kept.append(row)
        seen.append(row.times)
        session.execute(text("UPDATE counted SET times = times + 1"))

    world.write("a", "a", "a")
    world.consumer().run_once()
    assert seen == [0, 1, 2]


def test_pending_objects_are_flushed_next_to_loaded_rows(
    world: World,
) -> None:
    Base.metadata.create_all(world.downstream.engine)
    world.downstream.execute("INSERT INTO counted VALUES ('all', 0)")
    kept: list[Any] = []

    @world.downstream.app.consumer("stock").handles("orders.placed")
    def note(session: Session, event: Event) -> None:
        kept.append(session.get(Counted, "all"))
        session.add(Counted(key=event.key, times=1))

    world.write(*"abc")
    assert world.consumer().run_once().outcomes == {AttemptOutcome.APPLIED: 3}
    rows = world.downstream.rows("SELECT key FROM counted WHERE times = 1 ORDER BY key")
    assert rows == [("a",), ("b",), ("c",)]


def test_session_is_fresh_for_an_event_after_a_list_handler(world: World) -> None:
    Base.metadata.create_all(world.downstream.engine)
    world.downstream.execute("INSERT INTO counted VALUES ('a', 0)")
    kept: list[Any] = []

    def count(session: Session, _: Event | Sequence[Event]) -> None:
        assert not any(row in session for row in kept)
        kept.append(session.get(Counted, "a"))

    group = world.downstream.app.consumer("stock")
    group.handles_many("orders.placed")(count)
    group.handles("orders.paid", topic="orders.placed")(count)
    events = [Event(type=each, key="k") for each in ("orders.placed", "orders.paid")]
    with world.upstream.transaction() as session:
        world.upstream.app.outbox.add_all(session, events)
    drain(world.relay)
    assert world.consumer().run_once().outcomes == {AttemptOutcome.APPLIED: 2}
    assert len(kept) == 2


def test_event_without_a_key_blocks_no_other(world: World) -> None:
    seen: list[int] = []

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=SLOW)
    def reserve(session: Session, event: Event) -> None:
        seen.append(event.payload["n"])
        if event.payload["n"] == 0:
            raise RuntimeError("the shelf does not answer")

    world.write(None, None, None)
    outcomes = world.consumer().run_once().outcomes
    assert outcomes == {AttemptOutcome.RETRIED: 1, AttemptOutcome.APPLIED: 2}
    assert set(seen) == {0, 1, 2}


def test_an_event_written_in_a_batch_names_its_own_cause(world: World) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")

    @app.consumer("stock").handles("orders.placed")
    def reserve(session: Session, event: Event) -> None:
        app.outbox.add(session, Event(type="stock.reserved", key=event.key))

    events = world.write(*"abc")
    world.consumer().run_once()
    rows = world.downstream.rows("SELECT key, causation_id, causation_source FROM shield_outbox")
    assert sorted(rows) == [(e.key, e.id, "orders") for e in events]


def test_an_event_of_a_list_handler_has_the_given_cause(world: World) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")

    @app.consumer("stock").handles_many("orders.placed")
    def reserve(session: Session, events: Sequence[Event]) -> None:
        app.outbox.add_all(
            session,
            [
                Event(
                    type="stock.reserved",
                    key=e.key,
                    causation_id=None if e.key == "c" else e.id,
                    causation_source=e.source if e.key == "a" else None,
                )
                for e in events
            ],
        )

    [a, b, _] = world.write("a", "b", "c")
    world.consumer().run_once()
    rows = world.downstream.rows("SELECT key, causation_id, causation_source FROM shield_outbox")
    assert sorted(rows) == [("a", a.id, "orders"), ("b", b.id, "orders"), ("c", None, None)]


@pytest.mark.parametrize("number", [1, 2])
def test_events_of_a_list_handler_are_accepted_over_the_limit(world: World, number: int) -> None:
    app = world.downstream.app
    app.declare("stock.reserved", backlog_limit=1)
    with world.downstream.transaction() as session:
        app.outbox.add(session, Event(type="stock.reserved", key="before"))

    @app.consumer("stock").handles_many("orders.placed")
    def reserve(session: Session, events: Sequence[Event]) -> None:
        app.outbox.add_all(session, [Event(type="stock.reserved", key=e.key) for e in events])

    world.write(*"ab"[:number])
    world.consumer().run_once()
    assert world.downstream.inbox() == {"PROCESSED": number}


def test_handler_declared_alone_has_its_own_transactions(world: World) -> None:
    calls = Calls()
    world.downstream.app.consumer("stock").handles("orders.placed", alone=True)(calls.one)
    calls.trouble["b"] = raises(ValueError("not today"))
    world.write(*"abc")
    world.consumer().run_once()
    assert Counter(calls.keys) == Counter("abc")
    assert len(set(calls.transactions)) == 3


def test_handler_that_leaves_state_gets_its_own_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []
    sound = SqlInboxStore.effects

    def effects(store: SqlInboxStore, attempts: Sequence[Attempt]) -> Any:
        locked.append(len(attempts))
        return sound(store, attempts)

    @world.downstream.app.consumer("stock").handles("orders.placed")
    def reserve(session: Session, event: Event) -> None:
        session.info["user"] = event.key
        effect("done")(session, event)

    monkeypatch.setattr(SqlInboxStore, "effects", effects)
    world.write(*"abcdef")
    drain(world.consumer())
    assert sorted(world.downstream.effects()) == list("abcdef")
    assert locked == [6, 1, 1, 1, 1, 1]


def test_list_has_the_consecutive_events_of_its_type(world: World) -> None:
    lists: list[list[str]] = []
    group = world.downstream.app.consumer("stock")

    @group.handles_many("orders.placed")
    def place(session: Session, events: Sequence[Event]) -> None:
        lists.append([f"{e.type}:{e.payload['n']}" for e in events])

    @group.handles("orders.paid", topic="orders.placed")
    def pay(session: Session, event: Event) -> None:
        lists.append([f"{event.type}:{event.payload['n']}"])

    types = ["placed", "placed", "paid", "placed"]
    events = [
        Event(type=f"orders.{name}", key="a", payload={"n": n}) for n, name in enumerate(types)
    ]
    with world.upstream.transaction() as session:
        world.upstream.app.outbox.add_all(session, events)
    drain(world.relay)
    world.consumer().run_once()
    assert lists == [
        ["orders.placed:0", "orders.placed:1"],
        ["orders.paid:2"],
        ["orders.placed:3"],
    ]


def test_invalid_payload_waits_and_its_list_continues(world: World) -> None:
    lists: list[int] = []

    @world.downstream.app.consumer("stock").handles_many("orders.placed", payload=dict[str, int])
    def place(session: Session, events: Sequence[Event]) -> None:
        lists.append(len(events))

    with world.upstream.transaction() as session:
        for key, payload in (("a", {"n": 1}), ("b", {"n": "one"}), ("c", {"n": 3})):
            world.upstream.app.outbox.add(
                session, Event(type="orders.placed", key=key, payload=payload)
            )
    drain(world.relay)
    done = world.consumer().run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 2, AttemptOutcome.RETRIED: 1}
    assert sum(lists) == 2


def test_slow_handlers_get_smaller_then_single_transactions(
    world: World,
) -> None:
    calls = Calls()
    now = [0.0]
    world.downstream.app.consumer("stock").handles("orders.placed", lease=timedelta(seconds=60))(
        calls.one
    )
    consumer = world.consumer()
    executor_of(consumer)._clock = lambda: now[0]

    def take_half_a_second(session: Session) -> None:
        now[0] += 0.5

    keys = [f"k{n}" for n in range(40)]
    calls.trouble = dict.fromkeys(keys, take_half_a_second)
    world.write(*keys)
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 40}
    assert len(calls.keys) == 40
    sizes = list(Counter(calls.transactions).values())
    # First the default size, then as many as take a second; after a quarter of the lease, one by
    # one.
    assert sizes == [8, *[2] * 11, *[1] * 10]


def test_handlers_that_become_slow_keep_the_batch_within_lease(
    world: World,
) -> None:
    calls = Calls()
    now = [0.0]
    world.downstream.app.consumer("stock").handles("orders.placed", lease=timedelta(seconds=60))(
        calls.one
    )
    consumer = world.consumer()
    executor_of(consumer)._clock = lambda: now[0]

    def hang(session: Session) -> None:
        now[0] += 10

    keys = [f"k{n}" for n in range(8)]
    calls.trouble = dict.fromkeys(keys[:4], hang)
    world.write(*keys)
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 8}
    assert sorted(world.downstream.effects()) == keys
    assert {row[1:] for row in state(world)} == {("PROCESSED", 1)}


def test_the_shortest_lease_of_a_batch_ends_its_transactions(world: World) -> None:
    calls, now = Calls(), [0.0]
    group = world.downstream.app.consumer("stock")
    group.handles("orders.placed", lease=timedelta(seconds=60))(calls.one)
    group.handles("orders.paid", topic="orders.placed", lease=timedelta(seconds=8))(calls.one)
    consumer = world.consumer()
    executor_of(consumer)._clock = lambda: now[0]

    def take_half_a_second(session: Session) -> None:
        now[0] += 0.5

    calls.trouble = dict.fromkeys("abcdefgh", take_half_a_second)
    with world.upstream.transaction() as session:
        for type_, key in zip(("orders.placed", "orders.paid") * 4, "abcdefgh", strict=True):
            world.upstream.app.outbox.add(session, Event(type=type_, key=key))
    drain(world.relay)
    assert consumer.run_once().outcomes == {AttemptOutcome.APPLIED: 8}
    # The first transaction is rolled back after a quarter of 8 s: each event is processed alone.
    assert list(Counter(calls.transactions).values()) == [4, *[1] * 8]


def test_retries_without_delay_count_for_the_failing_event_only(world: World) -> None:
    calls = Calls()
    world.downstream.app.consumer("stock").handles("orders.placed", retry=QUICK)(calls.one)
    calls.trouble["b"] = raises(ValueError("never"))
    world.write(*"abc")
    drain(world.consumer())
    assert sorted(state(world)) == [
        ("a", "PROCESSED", 1),
        ("b", "MAX_RECONSUMED", QUICK.max_attempts),
        ("c", "PROCESSED", 1),
    ]
    # The event began a transaction of its own before its first attempt was counted as failed.
    assert calls.keys.count("b") == QUICK.max_attempts + 1
