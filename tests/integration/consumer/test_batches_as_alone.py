"""A batch has the effects of its events processed alone: no event meets the state that another
left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, create_engine, func, insert, select, table, text
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session

from shieldtx import Event, RetryPolicy
from shieldtx.store.residual_state import ResidualState, residual_state_of
from tests.integration.consumer.test_consumer import Make, World
from tests.support.service import Service, Wire, drain, effect, make_topics

ONCE = RetryPolicy(max_attempts=1)
KEYS = "abcd"
WITHOUT_THE_HABIT = "b"
"""The key whose handler does not have the habit, and so shows the state that another event left."""

Habit = Callable[[Session, Event], object]

EFFECTS = table("effects")
engine_of_nothing = create_engine("sqlite://")

STAGING = "staging (event_id text, key text, what text)"

SETUP = (
    "CREATE SCHEMA tenant",
    "CREATE TABLE tenant.effects (LIKE public.effects)",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO pg_monitor",
    """
    CREATE FUNCTION make_staging() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        CREATE TEMP TABLE IF NOT EXISTS staging (event_id text, key text, what text)
            ON COMMIT DROP;
    END $$
    """,
    """
    CREATE FUNCTION make_staging_to_stay() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        CREATE TEMP TABLE IF NOT EXISTS staging (event_id text, key text, what text);
    END $$
    """,
)

# No part of it may count as a statement that leaves state: each event would get a transaction.
FOUND = text(
    """
    SELECT current_setting('search_path'), nullif(current_setting('app.tenant', true), ''),
           current_user::text, current_setting('TimeZone'), current_setting('lock_timeout'),
           to_regclass('staging') IS NOT NULL,
           (SELECT count(*) FROM pg_cursors WHERE name = 'mine'),
           (SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'),
           (SELECT count(*) FROM pg_listening_channels())
    """
)


def runs(*statements: str) -> Habit:
    def run(session: Session, event: Event) -> None:
        for statement in statements:
            session.execute(text(statement))

    return run


def stages(*made_by: str) -> Habit:
    """Write the effect through a staging table, together with all other rows of that table."""

    def run(session: Session, event: Event) -> None:
        runs(*made_by)(session, event)
        put_in_staging(session, event)

    return run


def put_in_staging(session: Session, event: Event) -> None:
    session.execute(
        text("INSERT INTO staging VALUES (:id, :key, 'staged')"),
        {"id": str(event.id), "key": event.key},
    )
    session.execute(text("INSERT INTO effects SELECT * FROM staging"))


def stages_by_driver(session: Session, event: Event) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.execute(f"CREATE TEMP TABLE IF NOT EXISTS {STAGING} ON COMMIT DROP")
    put_in_staging(session, event)


def sets_by_parameters(*, is_local: bool) -> Habit:
    def run(session: Session, event: Event) -> None:
        session.execute(select(func.set_config("app.tenant", event.key, is_local)))

    return run


def keeps_info(session: Session, event: Event) -> None:
    session.info["user"] = event.key


def keeps_attribute(session: Session, event: Event) -> None:
    session.user = event.key  # type: ignore[attr-defined]


def stops_flushing(session: Session, event: Event) -> None:
    session.autoflush = False


def listens_to_session(session: Session, event: Event) -> None:
    @sqlalchemy_event.listens_for(session, "do_orm_execute")
    def hear(state: Any) -> None:
        session.connection().execute(
            text("INSERT INTO effects VALUES ('', :key, 'heard')"), {"key": event.key}
        )


def writes_at_commit(session: Session, event: Event) -> None:
    @sqlalchemy_event.listens_for(session, "before_commit")
    def write(_: Session) -> None:
        effect("at the commit")(session, event)


def listens_to_connection(session: Session, event: Event) -> None:
    heard: list[str] = []

    @sqlalchemy_event.listens_for(session.connection(), "before_cursor_execute", retval=True)
    def mark(
        connection: Connection, cursor: Any, statement: str, parameters: Any, *how: Any
    ) -> tuple[str, Any]:
        heard.append(statement)
        return statement.replace("'found'", f"'found by {event.key}'"), parameters


def rewrites_statements(session: Session, event: Event) -> None:
    @sqlalchemy_event.listens_for(session.connection(), "before_execute", retval=True)
    def rewrite(connection: Connection, element: Any, *given: Any) -> tuple[Any, Any, Any]:
        if isinstance(element, TextClause):
            element = text(element.text.replace("'found'", f"'found by {event.key}'"))
        return element, given[0], given[1]


def listens_for_a_while_then_for_good(session: Session, event: Event) -> None:
    def hear(_: Any) -> None:
        session.connection().execute(
            text("INSERT INTO effects VALUES ('', :key, 'heard')"), {"key": event.key}
        )

    sqlalchemy_event.listen(session, "do_orm_execute", hear)
    if event.key == "a":
        sqlalchemy_event.remove(session, "do_orm_execute", hear)


def binds_a_table(session: Session, event: Event) -> None:
    session.bind_table(EFFECTS, engine_of_nothing)


def translates(session: Session, event: Event) -> None:
    session.connection().execution_options(schema_translate_map={"t": "tenant"})


def opens_savepoints(*of: str) -> Habit:
    def run(session: Session, event: Event) -> None:
        for which in of:
            (session if which == "session" else session.connection()).begin_nested()
            effect(f"in the savepoint of the {which}")(session, event)

    return run


def tries_lock(name: str) -> Habit:
    def run(session: Session, event: Event) -> None:
        got = session.scalar(text(f"SELECT {name}(7)"))
        effect(f"lock: {got}")(session, event)

    return run


HABITS: dict[str, Habit] = {
    "none": lambda session, event: None,
    "temporary table, dropped at the commit": stages(
        f"CREATE TEMP TABLE IF NOT EXISTS {STAGING} ON COMMIT DROP"
    ),
    "temporary table": stages(f"create /* for a while */ temporary table if not exists {STAGING}"),
    "temporary table in its schema": stages(f"CREATE TABLE IF NOT EXISTS pg_temp.{STAGING}"),
    "temporary table of a query": runs("SELECT 1 AS n INTO TEMP staging"),
    "temporary table of a function": stages("SELECT make_staging()"),
    "temporary table of a function behind a setting": stages(
        "SET LOCAL lock_timeout = '9s'", "SELECT make_staging()"
    ),
    "temporary table of a function before a setting": stages(
        "SELECT make_staging()", "SET LOCAL lock_timeout = '9s'"
    ),
    "temporary table of a function, which stays": stages("SELECT make_staging_to_stay()"),
    "temporary table of the driver": stages_by_driver,
    "temporary view": runs("CREATE OR REPLACE TEMPORARY VIEW staging AS SELECT 1"),
    "temporary sequence": runs("CREATE TEMP SEQUENCE IF NOT EXISTS staging"),
    "search_path, local": runs("SET LOCAL search_path TO tenant, public"),
    "search_path behind a comment": runs("/* a */ -- b\n SET LOCAL search_path TO tenant, public"),
    "search_path behind another statement": runs(
        "SELECT 1; SET LOCAL search_path TO tenant, public"
    ),
    "search_path": runs("SET search_path TO tenant, public"),
    "search_path in a block": runs("DO $$ BEGIN SET search_path TO tenant, public; END $$"),
    "search_path, reset": runs("SET LOCAL search_path TO tenant, public", "RESET search_path"),
    "setting, local": runs("SELECT set_config('app.tenant', 'a', true)"),
    "setting": runs("SELECT set_config('app.tenant', 'a', false)"),
    "settings, one of them local": runs(
        "SELECT set_config('lock_timeout', '9s', true), set_config('app.tenant', 'a', false)"
    ),
    "setting by parameters, local": sets_by_parameters(is_local=True),
    "setting by parameters": sets_by_parameters(is_local=False),
    "limit, local": runs("SET LOCAL lock_timeout = '9s'"),
    "time zone": runs("SET TIME ZONE 'Asia/Tokyo'"),
    "role, local": runs("SET LOCAL ROLE pg_monitor"),
    "role": runs("SET ROLE pg_monitor"),
    "constraints": runs("SET CONSTRAINTS ALL DEFERRED"),
    "cursor": runs("DECLARE mine CURSOR FOR SELECT 1"),
    "cursor with hold": runs("DECLARE mine CURSOR WITH HOLD FOR SELECT 1"),
    "prepared statement": runs("PREPARE mine AS SELECT 1"),
    "channel": runs("LISTEN mine"),
    "info": keeps_info,
    "attribute": keeps_attribute,
    "autoflush": stops_flushing,
    "listener of the session": listens_to_session,
    "listener of the commit": writes_at_commit,
    "listener of the connection": listens_to_connection,
    "listener of the connection's statements": rewrites_statements,
    "listener where another one was": listens_for_a_while_then_for_good,
    "bind": binds_a_table,
    "execution option": translates,
    "savepoint of the session": opens_savepoints("session"),
    "savepoint of the connection": opens_savepoints("connection"),
    "savepoint of the connection in the session's": opens_savepoints("session", "connection"),
    "savepoint of the session in the connection's": opens_savepoints("connection", "session"),
    "savepoints": opens_savepoints("session", "connection", "connection", "session", "session"),
    "savepoint by hand": runs("SAVEPOINT mine"),
    "lock of the transaction": tries_lock("pg_try_advisory_xact_lock"),
    "lock": tries_lock("pg_try_advisory_lock"),
}


def found(session: Session) -> str:
    """Return the state that an event finds on its session and in its transaction."""
    in_database = session.connection().execute(FOUND).one()
    on_session = {
        "user": session.info.get("user") or getattr(session, "user", None),
        "autoflush": session.autoflush,
        "nested": session.in_nested_transaction() or session.connection().in_nested_transaction(),
        "bind": str(session.get_bind(clause=insert(EFFECTS)).engine.url.database),
        "options": str(session.connection().get_execution_options().get("schema_translate_map")),
    }
    return json.dumps([*in_database, on_session])


def of_group(group: str, habit: Habit) -> Habit:
    def handler(session: Session, event: Event) -> None:
        met = found(session)
        session.execute(select(1))
        if event.key != WITHOUT_THE_HABIT:
            habit(session, event)
        values = {"id": str(event.id), "key": event.key, "what": met}
        session.execute(text("INSERT INTO effects VALUES (:id, :key, 'found' || :what)"), values)

    return handler


@pytest.fixture
def world(make_service: Make, wire: Wire) -> World:
    upstream, downstream = make_service("orders"), make_service("stock")
    upstream.app.declare("orders.placed")
    upstream.app.declare("orders.paid", topic="orders.placed")
    make_topics(upstream)
    for statement in SETUP:
        downstream.execute(statement)
    return World(upstream=upstream, downstream=downstream, relay=upstream.relay(), wire=wire)


def take_effects(service: Service) -> list[tuple[Any, ...]]:
    """Return the effects of both schemas, and delete them."""
    rows = []
    for schema in ("public", "tenant"):
        rows += service.rows(f"SELECT '{schema}', event_id, key, what FROM {schema}.effects")
        service.execute(f"DELETE FROM {schema}.effects")
    return sorted(rows)


def test_query_for_left_state_counts_as_leaving_nothing() -> None:
    assert residual_state_of(str(FOUND), {}) is ResidualState.NOTHING


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
def test_no_event_meets_the_state_that_another_left(world: World, habit: Habit) -> None:
    downstream = world.downstream
    for name in ("reference", "batch", "alone"):
        group = downstream.app.consumer(name)
        group.handles("orders.placed", retry=ONCE, alone=name == "alone")(of_group(name, habit))
    consumer = downstream.app.build_consumer("reference")
    for key in KEYS:
        world.write(key)
        drain(consumer)
        # Each event of the reference group has a connection of its own.
        downstream.engine.dispose()
    expected = take_effects(downstream)
    assert {row[2] for row in expected} == set(KEYS)
    for name in ("batch", "alone"):
        drain(downstream.app.build_consumer(name))
        assert take_effects(downstream) == expected, name
    assert downstream.inbox() == {"PROCESSED": 3 * len(KEYS)}
    is_locked = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE locktype = 'advisory' AND datname = current_database()"
    )
    assert downstream.rows(is_locked) == [(0,)]


def test_query_for_left_state_keeps_events_in_one_transaction(world: World) -> None:
    seen = set()

    @world.downstream.app.consumer("stock").handles("orders.placed")
    def work(session: Session, event: Event) -> None:
        of_group("stock", HABITS["none"])(session, event)
        seen.add(session.scalar(text("SELECT txid_current()")))

    world.write(*KEYS)
    drain(world.consumer())
    assert len(world.downstream.effects()) == len(KEYS)
    assert len(seen) == 1


def test_lists_and_single_events_do_not_meet_each_others_state(world: World) -> None:
    group = world.downstream.app.consumer("stock")
    make = text(f"CREATE TEMP TABLE IF NOT EXISTS {STAGING} ON COMMIT DROP")
    put = text("INSERT INTO staging VALUES (:id, :key, 'staged')")

    def stage(session: Session, given: Event | Sequence[Event]) -> None:
        session.execute(make)
        for event in [given] if isinstance(given, Event) else given:
            session.execute(put, {"id": str(event.id), "key": event.key})
        session.execute(text("INSERT INTO effects SELECT * FROM staging"))

    group.handles("orders.placed", retry=ONCE)(stage)
    group.handles_many("orders.paid", topic="orders.placed", retry=ONCE)(stage)
    types = {"a": "placed", "b": "paid", "c": "paid", "d": "placed", "e": "paid"}
    with world.upstream.transaction() as session:
        for key, name in types.items():
            world.upstream.app.outbox.add(session, Event(type=f"orders.{name}", key=key))
    drain(world.relay)
    drain(world.downstream.app.build_consumer("stock"))
    assert sorted(world.downstream.effects()) == list("abcde")


def test_batch_that_ends_early_is_checked_for_temporary_tables(world: World) -> None:
    def stage(session: Session, event: Event) -> None:
        if event.key == "b":
            session.execute(text("SET LOCAL lock_timeout = '9s'"))
        stages("SELECT make_staging()")(session, event)

    world.downstream.app.consumer("stock").handles("orders.placed", retry=ONCE)(stage)
    world.write(*KEYS)
    drain(world.consumer())
    assert sorted(world.downstream.effects()) == list(KEYS)


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
@pytest.mark.parametrize(
    "further",
    [
        runs("SET LOCAL lock_timeout = '9s'"),
        runs(f"CREATE TEMP TABLE IF NOT EXISTS {STAGING} ON COMMIT DROP"),
        keeps_info,
    ],
    ids=["setting", "temporary table", "info"],
)
def test_last_event_of_a_transaction_meets_no_temporary_table(
    world: World, further: Habit, alone: bool
) -> None:
    group = world.downstream.app.consumer("stock")

    def stage_and_leave(session: Session, event: Event) -> None:
        further(session, event)
        stages("SELECT make_staging()")(session, event)

    group.handles("orders.placed", retry=ONCE, alone=alone)(stages("SELECT make_staging()"))
    group.handles("orders.paid", topic="orders.placed", retry=ONCE, alone=alone)(stage_and_leave)
    types = {"a": "placed", "b": "paid", "c": "placed", "d": "placed"}
    with world.upstream.transaction() as session:
        for key, name in types.items():
            world.upstream.app.outbox.add(session, Event(type=f"orders.{name}", key=key))
    drain(world.relay)
    drain(world.downstream.app.build_consumer("stock"))
    assert world.downstream.inbox() == {"PROCESSED": 4}
    assert sorted(world.downstream.effects()) == list("abcd")


def test_creating_a_temporary_table_ends_a_shared_transaction(
    world: World,
) -> None:
    seen: list[int] = []

    @world.downstream.app.consumer("stock").handles("orders.placed", retry=ONCE)
    def work(session: Session, event: Event) -> None:
        if len(seen) == len(KEYS) - 1:
            runs(f"CREATE TEMP TABLE IF NOT EXISTS {STAGING} ON COMMIT DROP")(session, event)
        seen.append(session.scalar(text("SELECT txid_current()")) or 0)

    world.write(*KEYS)
    drain(world.consumer())
    assert len(seen) == len(KEYS)
    assert len(set(seen)) == 1


@pytest.mark.parametrize(("stays", "connections"), [(False, 1), (True, 4)])
def test_connection_is_closed_for_temporary_tables_that_stay(
    world: World, stays: bool, connections: int
) -> None:
    seen: list[int] = []

    @world.downstream.app.consumer("stock").handles("orders.placed", alone=True)
    def work(session: Session, event: Event) -> None:
        stages(f"SELECT make_staging{'_to_stay' if stays else ''}()")(session, event)
        seen.append(session.scalar(text("SELECT pg_backend_pid()")) or 0)

    world.write(*KEYS)
    drain(world.consumer())
    assert sorted(world.downstream.effects()) == list(KEYS)
    assert len(set(seen)) == connections


def test_handlers_that_leave_no_state_share_a_transaction(world: World) -> None:
    seen: list[tuple[int, int]] = []

    @world.downstream.app.consumer("stock").handles("orders.placed")
    def work(session: Session, event: Event) -> None:
        effect("done")(session, event)
        with session.begin_nested(), session.connection().begin_nested():
            session.execute(text("UPDATE effects SET what = 'temp' WHERE key = 'a'"))
        numbers = session.execute(text("SELECT txid_current(), pg_backend_pid()")).one()
        seen.append((numbers[0], numbers[1]))

    world.write(*KEYS)
    drain(world.consumer())
    assert len(seen) == len(KEYS)
    assert len(set(seen)) == 1


@pytest.mark.parametrize(("local", "connections"), [(True, 1), (False, 4)])
def test_connection_is_closed_only_for_state_beyond_transaction(
    world: World, local: bool, connections: int
) -> None:
    seen: list[int] = []

    @world.downstream.app.consumer("stock").handles("orders.placed", alone=True)
    def work(session: Session, event: Event) -> None:
        session.execute(select(func.set_config("app.tenant", event.key, local)))
        seen.append(session.scalar(text("SELECT pg_backend_pid()")) or 0)

    world.write(*KEYS)
    drain(world.consumer())
    assert len(seen) == len(KEYS)
    assert len(set(seen)) == connections


def test_event_after_a_manual_savepoint_keeps_the_connection(world: World) -> None:
    seen: list[int] = []
    world.downstream.app.declare("stock.reserved")

    @world.downstream.app.consumer("stock").handles("orders.placed", alone=True)
    def work(session: Session, event: Event) -> None:
        world.downstream.app.outbox.add(session, Event(type="stock.reserved", key=event.key))
        session.execute(text("SAVEPOINT mine"))
        effect("done")(session, event)
        session.execute(text("RELEASE mine"))
        seen.append(session.scalar(text("SELECT pg_backend_pid()")) or 0)

    world.write(*KEYS)
    drain(world.consumer())
    assert world.downstream.inbox() == {"PROCESSED": len(KEYS)}
    assert len(set(seen)) == 1
