"""Refused events among others of their batch: each ends in the transaction of its neighbours."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy
from shieldtx.consumer import failure_rates
from shieldtx.consumer.shared_transaction import MOST_SAVEPOINTS
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.store import savepoints
from tests.integration.consumer.test_batches import Base, Counted
from tests.integration.consumer.test_consumer import SLOW, Make, World
from tests.support.handler_styles import STYLES
from tests.support.lanes import executor_of
from tests.support.log_records import fields_of, logged
from tests.support.savepoint_messages import savepoint_messages
from tests.support.service import Wire, drain, effect, make_topics

HANDLER_STYLES = [style for style in STYLES if style.lanes == 1]
ALL_IN_ONE, ONE_EACH = 1_000, 1
"""The maximum number of events in a savepoint."""
GIVES_UP = "last_error=jsonb_extract_path_text"
"""In the statement that gives up the refused events of a transaction."""


@pytest.fixture(params=[ALL_IN_ONE, ONE_EACH], ids=["all-in-one", "one-each"])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def world(make_service: Make, wire: Wire, monkeypatch: pytest.MonkeyPatch, number: int) -> World:
    monkeypatch.setattr(failure_rates, "best_number", lambda *_: number)
    upstream, downstream = make_service("orders"), make_service("stock")
    upstream.app.declare("orders.placed")
    make_topics(upstream, partitions=1)
    return World(upstream=upstream, downstream=downstream, relay=upstream.relay(), wire=wire)


class Handler:
    """A handler that writes, and then does what a test wants for a key."""

    def __init__(self, world: World, retry: RetryPolicy = SLOW) -> None:
        self.world = world
        self.calls: list[str | None] = []
        self.trouble: dict[str, Callable[[Session], object]] = {"warm": refuse}
        self.group = world.downstream.app.consumer("stock")
        self.group.handles("orders.placed", retry=retry)(self.one)

    def one(self, session: Session, event: Event) -> None:
        self.calls.append(event.key)
        effect("done")(session, event)
        if event.key in self.trouble:
            self.trouble[event.key](session)

    def primed(self) -> Any:
        """Return a consumer whose handler has refused an event, and so gets savepoints."""
        consumer = self.world.consumer()
        self.world.write("warm")
        assert consumer.run_once().outcomes == {AttemptOutcome.REFUSED: 1}
        self.calls.clear()
        return consumer


def refuse(session: Session) -> None:
    raise Refused("no stock")


def fail(session: Session) -> None:
    raise ValueError("not today")


def state(world: World) -> list[tuple[Any, ...]]:
    return world.downstream.rows(
        "SELECT key, status FROM shield_inbox WHERE key <> 'warm' ORDER BY seq"
    )


def rollbacks(world: World) -> list[str]:
    """Return the keys of the rollback events, in the order of the outbox."""
    rows = world.downstream.rows(
        "SELECT o.key FROM shield_outbox o JOIN shield_inbox i ON i.event_id = o.causation_id "
        "WHERE o.tx_kind = 'ROLLBACK' AND i.status = 'MAX_RECONSUMED' AND o.key <> 'warm' "
        "ORDER BY o.seq"
    )
    return [key for (key,) in rows]


def transactions_of_inbox(world: World) -> int:
    """Return how many transactions have settled the rows."""
    [(number,)] = world.downstream.rows(
        "SELECT count(DISTINCT xmin::text) FROM shield_inbox WHERE key <> 'warm'"
    )
    return int(number)


@contextmanager
def statements(world: World) -> Iterator[list[str]]:
    """Collect the statements on the engines of the downstream service."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "SAVEPOINT" not in statement:
            seen.append(statement)

    service = world.downstream
    engines = [
        service.engine,
        *([service.async_engine.sync_engine] if service.async_engine else []),
    ]
    for engine in engines:
        sqlalchemy_event.listen(engine, "before_cursor_execute", note)
    try:
        with savepoint_messages(lambda message: seen.extend(message.split("; "))):
            yield seen
    finally:
        for engine in engines:
            sqlalchemy_event.remove(engine, "before_cursor_execute", note)


def outcomes_and_statements(
    world: World, handler: Handler, keys: Sequence[str]
) -> tuple[Counter[AttemptOutcome], list[str]]:
    """Handle an event of each key in one pass, as if no call took any time."""
    consumer = handler.primed()
    executor_of(consumer)._seconds_per_event = 0.000_1
    executor_of(consumer)._clock = lambda: 0.0
    world.write(*keys)
    with statements(world) as seen:
        return consumer.run_once().outcomes, seen


def test_refused_events_end_in_their_neighbours_transaction(world: World) -> None:
    handler = Handler(world)
    handler.trouble |= dict.fromkeys("cf", refuse)
    consumer = handler.primed()
    world.write(*"abcdefg")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 5, AttemptOutcome.REFUSED: 2}
    assert world.downstream.effects() == list("abdeg")
    ended = {"c": "MAX_RECONSUMED", "f": "MAX_RECONSUMED"}
    assert state(world) == [(k, ended.get(k, "PROCESSED")) for k in "abcdefg"]
    assert rollbacks(world) == ["c", "f"]
    assert transactions_of_inbox(world) == 1
    [(reason, lease)] = world.downstream.rows(
        "SELECT last_error, lease_token FROM shield_inbox WHERE key = 'c'"
    )
    assert (reason, lease) == ("Refused: no stock", None)


@pytest.mark.parametrize("number", [ONE_EACH])
def test_with_a_savepoint_each_no_handler_runs_twice(world: World) -> None:
    handler = Handler(world)
    handler.trouble |= dict.fromkeys("cf", refuse)
    consumer = handler.primed()
    world.write(*"abcdefg")
    consumer.run_once()
    assert handler.calls == list("abcdefg")


def test_another_error_keeps_the_neighbours_before_it(world: World) -> None:
    handler = Handler(world)
    handler.trouble |= {"b": refuse, "d": fail}
    consumer = handler.primed()
    world.write(*"abcdef")
    done = consumer.run_once()
    assert done.outcomes == {
        AttemptOutcome.APPLIED: 4,
        AttemptOutcome.REFUSED: 1,
        AttemptOutcome.RETRIED: 1,
    }
    assert world.downstream.effects() == list("acef")
    assert rollbacks(world) == ["b"]
    [(attempts,)] = world.downstream.rows("SELECT attempts FROM shield_inbox WHERE key = 'd'")
    assert attempts == 1


def test_refusals_of_one_key_and_its_later_event_stay_in_order(world: World) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")

    @app.consumer("stock").handles("orders.placed", retry=SLOW)
    def reserve(session: Session, event: Event) -> None:
        app.outbox.add(session, Event(type="stock.reserved", key=event.key))
        if event.key in {"a", "warm"} and event.payload["n"] < 2:
            raise Refused("no stock")

    consumer = world.consumer()
    world.write("warm")
    consumer.run_once()
    events = world.write("a", "a", "a", "b")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 2, AttemptOutcome.REFUSED: 2}
    rows = world.downstream.rows(
        "SELECT tx_kind, causation_id FROM shield_outbox WHERE key = 'a' ORDER BY seq"
    )
    kinds = ["ROLLBACK", "ROLLBACK", "COMMIT"]
    assert rows == [(kind, e.id) for kind, e in zip(kinds, events[:3], strict=True)]
    assert transactions_of_inbox(world) == 1


def test_handlers_own_savepoints_and_errors_are_undone_with_it(world: World) -> None:
    def leave_savepoints_open(session: Session) -> None:
        session.begin_nested()
        session.execute(text("INSERT INTO effects VALUES ('x', 'inner', 'inner')"))
        session.connection().begin_nested()
        session.execute(text("INSERT INTO effects VALUES ('x', 'inmost', 'inner')"))
        raise Refused("no stock")

    def violate(session: Session) -> None:
        session.execute(text("CREATE UNIQUE INDEX ON effects (what, key)"))
        try:
            session.execute(text("INSERT INTO effects VALUES ('x', 'b', 'done')"))
        except IntegrityError as error:
            raise Refused("already there") from error

    handler = Handler(world)
    handler.trouble |= {"b": violate, "d": leave_savepoints_open}
    consumer = handler.primed()
    world.write(*"abcde")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 3, AttemptOutcome.REFUSED: 2}
    assert world.downstream.effects() == list("ace")
    assert rollbacks(world) == ["b", "d"]
    assert transactions_of_inbox(world) == 1


def end_the_savepoint(session: Session) -> None:
    nested = session.get_nested_transaction()
    if nested is not None:
        nested.commit()


def test_event_in_a_savepoint_of_the_connection_is_refused(world: World) -> None:
    """As alone: its rollback would leave the event without its data."""
    handler = Handler(world)
    world.downstream.app.declare("stock.reserved")
    outbox = world.downstream.app.outbox

    def reserve_and_undo(session: Session) -> None:
        savepoint = session.connection().begin_nested()
        effect("undone")(session, Event(type="stock.reserved", key="b"))
        outbox.add(session, Event(type="stock.reserved", key="b"))
        savepoint.rollback()

    handler.trouble["b"] = reserve_and_undo
    consumer = handler.primed()
    world.write(*"abc")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 2, AttemptOutcome.RETRIED: 1}
    assert world.downstream.effects() == list("ac")
    assert world.downstream.rows("SELECT key FROM shield_outbox WHERE tx_kind = 'COMMIT'") == []


def test_ended_savepoint_rolls_the_transaction_back(world: World) -> None:
    def end_and_refuse(session: Session) -> None:
        end_the_savepoint(session)
        raise Refused("no stock")

    handler = Handler(world)
    handler.trouble |= {"b": end_and_refuse, "d": end_the_savepoint}
    consumer = handler.primed()
    world.write(*"abcde")
    done = consumer.run_once()
    assert done.outcomes[AttemptOutcome.APPLIED] == 3
    assert world.downstream.effects() == list("ace")
    assert dict(state(world))["b"] == "MAX_RECONSUMED"
    assert dict(state(world))["d"] == "PROCESSING"
    assert rollbacks(world) == ["b"]


def test_swallowed_error_of_a_flush_loses_no_effect_silently(world: World) -> None:
    Base.metadata.create_all(world.downstream.engine)
    world.downstream.execute("INSERT INTO counted VALUES ('c', 0)")

    def swallow(session: Session) -> None:
        session.add(Counted(key="c", times=1))
        with pytest.raises(IntegrityError):
            session.flush()

    handler = Handler(world)
    handler.trouble["c"] = swallow
    consumer = handler.primed()
    world.write(*"abcde")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 4, AttemptOutcome.RETRIED: 1}
    assert world.downstream.effects() == list("abde")


def test_objects_of_a_refused_event_reach_no_neighbour(world: World) -> None:
    Base.metadata.create_all(world.downstream.engine)
    kept: list[Any] = []

    def add_and_refuse(session: Session) -> None:
        kept.append(Counted(key="b", times=1))
        session.add(kept[0])
        session.info["of b"] = 1
        raise Refused("no stock")

    def look(session: Session) -> None:
        assert kept[0] not in session
        assert "of b" not in session.info

    handler = Handler(world)
    handler.trouble |= {"b": add_and_refuse, "c": look, "a": lambda s: s.info.get("of b")}
    consumer = handler.primed()
    world.write(*"abcd")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 3, AttemptOutcome.REFUSED: 1}
    assert world.downstream.rows("SELECT * FROM counted") == []


def test_refusal_is_reported_once_and_after_the_commit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.downstream.execute("CREATE TABLE slots (key text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    world.downstream.execute("INSERT INTO slots VALUES ('taken')")
    reported: list[tuple[Any, ...]] = []

    def note(context: Any) -> None:
        rows = world.downstream.rows("SELECT status FROM shield_inbox WHERE key = 'b'")
        reported.append((context.key, *rows))

    world.downstream.app.hooks.on_consume_error(note)
    handler = Handler(world)

    def fail_at_the_commit(session: Session) -> None:
        session.execute(text("INSERT INTO slots VALUES ('taken')"))

    handler.trouble |= {"b": refuse, "d": fail_at_the_commit}
    consumer = handler.primed()
    reported.clear()
    caplog.clear()
    world.write(*"abcd")
    done = consumer.run_once()
    assert done.outcomes == {
        AttemptOutcome.APPLIED: 2,
        AttemptOutcome.REFUSED: 1,
        AttemptOutcome.RETRIED: 1,
    }
    assert [each[0] for each in reported] == ["b", "d"]
    assert reported[0][1] == ("MAX_RECONSUMED",)
    assert len(logged(caplog.records, "event_refused")) == 1
    actions = [fields_of(record).get("action") for record in caplog.records]
    assert actions.index("batch_failed") < actions.index("event_refused")
    assert rollbacks(world) == ["b"]


def test_process_that_ends_after_a_refusal_has_refused_nothing(world: World) -> None:
    def end(session: Session) -> None:
        raise SystemExit(3)

    handler = Handler(world)
    handler.trouble |= {"b": refuse, "c": end}
    consumer = handler.primed()
    world.write(*"abcd")
    with pytest.raises(SystemExit):
        consumer.run_once()
    assert {status for _, status in state(world)} == {"PROCESSING"}
    assert rollbacks(world) == []
    del handler.trouble["c"]
    world.downstream.execute("UPDATE shield_inbox SET lease_until = now()")
    drain(world.consumer())
    assert sorted(world.downstream.effects()) == list("acd")
    assert rollbacks(world) == ["b"]


@pytest.mark.plain_handlers
def test_worker_that_lost_its_batch_refuses_nothing(world: World) -> None:
    handler = Handler(world)
    handler.trouble["b"] = refuse
    zombie = handler.primed()
    execute = executor_of(zombie).execute

    def stall(attempts: Sequence[Attempt]) -> Counter[AttemptOutcome]:
        world.downstream.execute("UPDATE shield_inbox SET lease_until = now() WHERE key = 'b'")
        drain(world.consumer())
        return execute(attempts)

    executor_of(zombie).execute = stall
    world.write(*"abc")
    zombie.run_once()
    assert sorted(world.downstream.effects()) == list("ac")
    assert rollbacks(world) == ["b"]


def test_interceptor_refuses_what_the_handler_has_done(world: World) -> None:
    handler = Handler(world)

    @handler.group.intercepts
    def check(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        proceed()
        if event.key == "c":
            raise Refused("not this one")

    consumer = handler.primed()
    world.write(*"abcde")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 4, AttemptOutcome.REFUSED: 1}
    assert world.downstream.effects() == list("abde")
    assert rollbacks(world) == ["c"]


def test_refused_event_of_a_list_is_found_in_its_transaction(world: World) -> None:
    lists: list[str] = []
    refused = {"warm", "c", "f"}

    @world.downstream.app.consumer("stock").handles_many("orders.placed", retry=SLOW)
    def many(session: Session, events: Sequence[Event]) -> None:
        lists.append("".join(event.key or "" for event in events))
        for event in events:
            effect("done")(session, event)
            if event.key in refused:
                raise Refused("no stock")

    consumer = world.consumer()
    world.write("warm")
    consumer.run_once()
    world.write(*"abcdefgh")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 6, AttemptOutcome.REFUSED: 2}
    assert world.downstream.effects() == list("abdegh")
    assert rollbacks(world) == ["c", "f"]
    assert transactions_of_inbox(world) == 1


def test_hundred_events_with_five_refusals_take_few_statements(world: World, number: int) -> None:
    handler = Handler(world)
    keys = [f"k{n}" for n in range(100)]
    handler.trouble |= dict.fromkeys(keys[10::20], refuse)
    outcomes, seen = outcomes_and_statements(world, handler, keys)
    assert outcomes == {AttemptOutcome.APPLIED: 95, AttemptOutcome.REFUSED: 5}
    verbs = Counter(each.split()[0] for each in seen)
    inserted = [each for each in seen if each.startswith("INSERT INTO") and "shield_outbox" in each]
    given_up = [each for each in seen if GIVES_UP in each]
    # One statement each for the refusals of a transaction, of which 60 savepoints make one.
    transactions = 1 if number == ALL_IN_ONE else 2
    assert (len(inserted), len(given_up)) == (transactions, transactions)
    assert verbs["SAVEPOINT"] <= (100 if number == ONE_EACH else 16)
    assert verbs["ROLLBACK"] <= 10
    assert transactions_of_inbox(world) == transactions


def test_number_of_savepoints_in_a_transaction_is_bounded(world: World, number: int) -> None:
    handler = Handler(world)
    keys = [f"k{n}" for n in range(260)]
    handler.trouble |= dict.fromkeys(keys[::2], refuse)
    outcomes, seen = outcomes_and_statements(world, handler, keys)
    assert outcomes == {AttemptOutcome.REFUSED: 130, AttemptOutcome.APPLIED: 130}
    assert rollbacks(world) == keys[::2]
    inside = [each for each in seen if each.startswith("SAVEPOINT") or GIVES_UP in each]
    longest = max(
        map(len, "".join("s" if each.startswith("S") else " " for each in inside).split())
    )
    assert longest <= MOST_SAVEPOINTS
    assert number == ALL_IN_ONE or longest == MOST_SAVEPOINTS


@pytest.mark.parametrize("number", [ONE_EACH], indirect=True, ids=["one-each"])
def test_next_savepoint_goes_with_the_release_of_the_last(world: World, number: int) -> None:
    messages: list[str] = []

    def note(message: str) -> None:
        messages.append(message.split(maxsplit=1)[0] + " ;" * message.count("; SAVEPOINT"))

    handler = Handler(world)
    keys = [f"k{n}" for n in range(40)]
    handler.trouble |= dict.fromkeys(keys[::2], refuse)
    with savepoint_messages(note):
        outcomes, _ = outcomes_and_statements(world, handler, keys)
    assert outcomes == {AttemptOutcome.REFUSED: 20, AttemptOutcome.APPLIED: 20}
    engine = world.downstream.async_engine or world.downstream.engine
    together, alone = messages.count("RELEASE ;"), messages.count("RELEASE")
    if engine.dialect.driver in savepoints._TAKE_SEVERAL:
        assert (messages.count("SAVEPOINT"), alone) == (1, 1)
        assert together > 10
    else:
        assert together == 0
        assert alone == messages.count("SAVEPOINT") > 10


def test_refused_events_one_after_the_other_share_a_savepoint(world: World) -> None:
    handler = Handler(world)
    keys = [f"k{n}" for n in range(130)]
    handler.trouble |= dict.fromkeys(keys, refuse)
    outcomes, seen = outcomes_and_statements(world, handler, keys)
    assert outcomes == {AttemptOutcome.REFUSED: 130}
    assert rollbacks(world) == keys
    assert world.downstream.effects() == []
    assert [each.startswith("SAVEPOINT") for each in seen].count(True) == 1


def test_rollback_follows_the_event_of_its_keys_earlier_handler(world: World) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")

    @app.consumer("stock").handles("orders.placed", retry=SLOW)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "warm" or event.payload["n"] == 1:
            raise Refused("no stock")
        app.outbox.add(session, Event(type="stock.reserved", key=event.key))

    consumer = world.consumer()
    world.write("warm")
    consumer.run_once()
    events = world.write("a", "a")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 1, AttemptOutcome.REFUSED: 1}
    rows = world.downstream.rows(
        "SELECT tx_kind, causation_id FROM shield_outbox WHERE key = 'a' ORDER BY seq"
    )
    assert rows == [("COMMIT", events[0].id), ("ROLLBACK", events[1].id)]
    assert transactions_of_inbox(world) == 1


def test_relay_is_woken_once_the_rollbacks_are_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Handler(world)
    handler.trouble |= {"b": refuse, "c": refuse}
    consumer = handler.primed()
    found: list[list[str]] = []
    outbox = world.downstream.app.outbox
    monkeypatch.setattr(outbox, "wake", lambda: found.append(rollbacks(world)))
    world.write(*"abcd")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 2, AttemptOutcome.REFUSED: 2}
    assert found == [["b", "c"]]


def test_events_of_refusing_handlers_are_undone(world: World) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")

    @app.consumer("stock").handles("orders.placed", retry=SLOW)
    def reserve(session: Session, event: Event) -> None:
        effect("done")(session, event)
        app.outbox.add(session, Event(type="stock.reserved", key=event.key))
        if event.key in {"warm", *"abdeg"}:
            raise Refused("no stock")

    consumer = world.consumer()
    world.write("warm")
    consumer.run_once()
    world.write(*"abcdefgh")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 3, AttemptOutcome.REFUSED: 5}
    written = world.downstream.rows("SELECT key FROM shield_outbox WHERE tx_kind = 'COMMIT'")
    assert sorted(key for (key,) in written) == list("cfh")
    assert rollbacks(world) == list("abdeg")
    assert world.downstream.effects() == list("cfh")
    assert transactions_of_inbox(world) == 1


def test_effect_of_another_type_between_two_refusals_is_kept(world: World) -> None:
    """Its handler has never failed, and so gets no savepoint of its own."""
    handler = Handler(world)
    handler.group.handles("orders.paid", topic="orders.placed")(effect("paid"))
    handler.trouble |= dict.fromkeys("ac", refuse)
    consumer = handler.primed()
    world.upstream.app.declare("orders.paid", topic="orders.placed")
    types = {"a": "orders.placed", "b": "orders.paid", "c": "orders.placed"}
    with world.upstream.transaction() as session:
        world.upstream.app.outbox.add_all(
            session, [Event(type=type_, key=key) for key, type_ in types.items()]
        )
    drain(world.relay)
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 1, AttemptOutcome.REFUSED: 2}
    assert world.downstream.effects("paid") == ["b"]
    assert rollbacks(world) == ["a", "c"]
    assert transactions_of_inbox(world) == 1


LINE = "INSERT INTO lines VALUES (:number)"


def test_failed_pipeline_of_a_refused_event_harms_no_other(world: World) -> None:
    """psycopg takes the statements of a pipeline for prepared before the server has answered."""
    world.downstream.execute("CREATE TABLE lines (number int CHECK (number <> 13))")

    def one(session: Session) -> None:
        session.execute(text(LINE), {"number": 70_000})

    def several(session: Session) -> None:
        # A small number has another type, and so a prepared statement of its own.
        session.execute(text(LINE), [{"number": 13}, {"number": 70_000}])

    handler = Handler(world, RetryPolicy(max_attempts=1, refuse_on=(IntegrityError,)))
    handler.trouble |= {"a": one, "b": several, "c": one, "d": one}
    consumer = handler.primed()
    world.write(*"abcd")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 3, AttemptOutcome.REFUSED: 1}
    assert rollbacks(world) == ["b"]


@pytest.mark.plain_handlers
def test_handler_that_leaves_a_pipeline_open_fails_alone(world: World) -> None:
    def open_pipeline(session: Session) -> None:
        driver: Any = session.connection().connection.driver_connection
        left.append(pipeline := driver.pipeline())
        pipeline.__enter__()

    left: list[Any] = []
    handler = Handler(world)
    handler.trouble |= {"b": open_pipeline, "d": refuse}
    consumer = handler.primed()
    world.write(*"abcde")
    done = consumer.run_once()
    assert done.outcomes == {
        AttemptOutcome.APPLIED: 3,
        AttemptOutcome.RETRIED: 1,
        AttemptOutcome.REFUSED: 1,
    }
    assert world.downstream.effects() == list("ace")
    [(error,)] = world.downstream.rows("SELECT last_error FROM shield_inbox WHERE key = 'b'")
    assert "left the driver's pipeline open" in error


def prepared(world: World) -> list[str]:
    """Return the statements that are prepared on the only connection of the consumer's engine."""
    with world.downstream.engine.connect() as connection:
        # Not prepared itself.
        found = connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements")
        return [statement for (statement,) in found]


def prepare_threshold(world: World) -> int | None:
    with world.downstream.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        return driver.prepare_threshold


@pytest.mark.plain_handlers
@pytest.mark.parametrize("number", [ONE_EACH], indirect=True)
def test_no_handler_returns_to_a_savepoint_of_another(world: World) -> None:
    """A driver's savepoint that stays open would undo the events between the two handlers."""

    def leave_open(session: Session) -> None:
        driver: Any = session.connection().connection.driver_connection
        driver.execute("SAVEPOINT x")
        effect("after")(session, Event(type="orders.placed", key="a"))

    def return_to_it(session: Session) -> None:
        driver: Any = session.connection().connection.driver_connection
        driver.execute("ROLLBACK TO SAVEPOINT x")

    handler = Handler(world)
    handler.trouble |= {"a": leave_open, "c": refuse, "d": return_to_it}
    consumer = handler.primed()
    world.write(*"abcd")
    done = consumer.run_once()
    assert done.outcomes == {
        AttemptOutcome.APPLIED: 2,
        AttemptOutcome.REFUSED: 1,
        AttemptOutcome.RETRIED: 1,
    }
    assert world.downstream.effects() == ["a", "a", "b"]
    assert rollbacks(world) == ["c"]


@pytest.mark.plain_handlers
@pytest.mark.parametrize("number", [ONE_EACH], indirect=True)
def test_refused_events_let_psycopg_keep_its_statements(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement prepared in a savepoint is deallocated with it, and all others are too."""
    monkeypatch.setattr(failure_rates, "_WEIGHT", 0.9)
    handler = Handler(world)
    handler.trouble |= {"a": refuse, "b": refuse}
    consumer = handler.primed()
    for _ in range(8):
        world.write("a", "b")
        assert consumer.run_once().outcomes == {AttemptOutcome.REFUSED: 2}
    kept = prepared(world)
    assert any("FOR NO KEY UPDATE" in statement for statement in kept), kept
    assert not any("SAVEPOINT" in statement for statement in kept), kept
    assert not any("effects" in statement for statement in kept), kept
    assert prepare_threshold(world) == 5


@pytest.mark.plain_handlers
@pytest.mark.parametrize("number", [ONE_EACH], indirect=True)
def test_transaction_that_fails_leaves_psycopg_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_rates, "_WEIGHT", 0.9)

    def end(session: Session) -> None:
        raise SystemExit(3)

    handler = Handler(world)
    handler.trouble["a"] = end
    consumer = handler.primed()
    world.write("a")
    with pytest.raises(SystemExit):
        consumer.run_once()
    assert prepare_threshold(world) == 5


def test_columns_of_a_refused_event_are_gone_for_the_next(world: World) -> None:
    world.downstream.execute("CREATE TABLE lines (number int)")

    def read(session: Session) -> None:
        session.execute(text("SELECT * FROM lines")).all()

    def alter(session: Session) -> None:
        session.execute(text("ALTER TABLE lines ADD COLUMN name text"))
        for _ in range(7):
            read(session)
        raise Refused("no")

    handler = Handler(world, RetryPolicy(max_attempts=1))
    handler.trouble |= {"a": alter, "b": read}
    consumer = handler.primed()
    world.write(*"abc")
    done = consumer.run_once()
    assert done.outcomes == {AttemptOutcome.APPLIED: 2, AttemptOutcome.REFUSED: 1}
    assert rollbacks(world) == ["a"]
