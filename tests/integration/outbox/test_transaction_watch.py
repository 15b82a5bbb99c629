"""Events are refused only when their transaction was rolled back without the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from shieldtx import Settings, ShieldTx
from shieldtx.domain.statement_watches import BUFFERS
from shieldtx.errors import TransactionRefused
from tests.support.lost_connections import cut
from tests.support.migrated_databases import migrated_sqlite
from tests.support.orders import Order, counts, placed, shop
from tests.support.service import Service

__all__ = ["shop"]

GONE = "has ended without the session"
READ = text("SELECT 1")


def write(session: Session, number: int = 1) -> None:
    session.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})


def add(shop: Service, session: Any) -> None:
    shop.app.outbox.add(session, placed())


def driver_of(session: Session) -> Any:
    return session.connection().connection.driver_connection


def fail_in_block(session: Session, act: Callable[[], object]) -> None:
    with driver_of(session).transaction(force_rollback=True):
        act()


def flush_early(shop: Service, session: Session) -> None:
    """Write the waiting events: an event can be cancelled only after it is written."""
    shop.app.outbox.cancel(session, uuid4())


@contextmanager
def marks_in(shop: Service) -> Iterator[list[str]]:
    """Record the statements that set the marks of a transaction, or read them."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "shieldtx.marks" in statement:
            found.append("mark" if "set_config" in statement else "look")

    event.listen(shop.engine, "before_cursor_execute", note)
    yield found
    event.remove(shop.engine, "before_cursor_execute", note)


def data_then_event(shop: Service, session: Session) -> None:
    write(session)
    add(shop, session)


def event_then_data(shop: Service, session: Session) -> None:
    add(shop, session)
    write(session)


def rolled_back_at_once(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    driver_of(session).rollback()


def rolled_back_and_gone_on(shop: Service, session: Session) -> None:
    event_then_data(shop, session)
    driver_of(session).rollback()
    session.execute(READ)


def rolled_back_before_a_nested_one(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    driver_of(session).rollback()
    with session.begin_nested() as savepoint:
        savepoint.rollback()


def rolled_back_before_an_object(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.add(Order(id=2))
    driver_of(session).rollback()


def in_a_block(shop: Service, session: Session) -> None:
    write(session, 2)
    fail_in_block(session, lambda: data_then_event(shop, session))


def in_a_block_behind_another(shop: Service, session: Session) -> None:
    event_then_data(shop, session)

    def act() -> None:
        write(session, 2)
        add(shop, session)

    fail_in_block(session, act)


def in_a_block_whose_statement_follows(shop: Service, session: Session) -> None:
    add(shop, session)

    def act() -> None:
        write(session)
        add(shop, session)
        write(session, 2)

    write(session, 3)
    fail_in_block(session, act)


def by_hand(shop: Service, session: Session) -> None:
    session.execute(text("SAVEPOINT mine"))
    data_then_event(shop, session)
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


def by_hand_behind_another(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("SAVEPOINT mine"))
    write(session, 2)
    add(shop, session)
    session.execute(READ)
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


def by_hand_before_a_third(shop: Service, session: Session) -> None:
    by_hand_behind_another(shop, session)
    add(shop, session)
    session.execute(READ)


def written_in_a_block(shop: Service, session: Session) -> None:
    event_then_data(shop, session)
    fail_in_block(session, lambda: flush_early(shop, session))


def written_by_hand(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("SAVEPOINT mine"))
    flush_early(shop, session)
    session.execute(text("ROLLBACK TO mine"))


def object_in_a_block(shop: Service, session: Session) -> None:
    session.execute(READ)
    session.add(Order(id=1))
    add(shop, session)
    fail_in_block(session, lambda: session.scalars(select(Order)).all())


def objects_undone_behind_the_event(shop: Service, session: Session) -> None:
    data_then_event(shop, session)

    def act() -> None:
        session.add(Order(id=2))
        session.flush()

    fail_in_block(session, act)


def object_behind_the_event_in_a_block(shop: Service, session: Session) -> None:
    write(session, 2)
    add(shop, session)
    session.add(Order(id=1))
    fail_in_block(session, lambda: session.scalars(select(Order)).all())


def object_by_hand(shop: Service, session: Session) -> None:
    session.add(Order(id=1))
    add(shop, session)
    session.connection().execute(text("SAVEPOINT mine"))
    session.flush()
    session.execute(text("ROLLBACK TO mine"))


def object_behind_the_event_by_hand(shop: Service, session: Session) -> None:
    session.execute(READ)
    add(shop, session)
    session.add(Order(id=1))
    session.connection().execute(text("SAVEPOINT mine"))
    session.flush()
    session.execute(text("ROLLBACK TO mine"))


def object_in_a_savepoint_of_the_connection(shop: Service, session: Session) -> None:
    session.add(Order(id=1))
    add(shop, session)
    savepoint = session.connection().begin_nested()
    session.flush()
    savepoint.rollback()


def connection_rolled_back(shop: Service, session: Session) -> None:
    add(shop, session)
    driver_of(session).execute("INSERT INTO orders VALUES (1)")
    session.connection().rollback()
    session.execute(READ)


def rolled_back_when_the_first_statement_failed(shop: Service, session: Session) -> None:
    add(shop, session)
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT * FROM nowhere"))
    driver_of(session).rollback()


def by_hand_behind_a_commit_that_failed(shop: Service, session: Session) -> None:
    def refuse(_: Session) -> None:
        raise ValueError("refused")

    add(shop, session)
    event.listen(session, "before_commit", refuse)
    with pytest.raises(ValueError, match="refused"):
        session.commit()
    event.remove(session, "before_commit", refuse)
    by_hand(shop, session)


def by_hand_before_the_commit(shop: Service, session: Session) -> None:
    add(shop, session)

    def act(session: Session) -> None:
        by_hand(shop, session)

    event.listen(session, "before_commit", act, once=True)


def among_other_statements(shop: Service, session: Session) -> None:
    session.execute(text("SELECT 1; SAVEPOINT mine"))
    data_then_event(shop, session)
    session.execute(text("SELECT 1; ROLLBACK TO mine"))


def behind_a_comment(shop: Service, session: Session) -> None:
    session.execute(text("/* by a tool */ SAVEPOINT mine"))
    data_then_event(shop, session)
    session.execute(text("-- by a tool\nROLLBACK TO mine"))


def refused_and_gone_on(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    driver_of(session).rollback()
    with pytest.raises(TransactionRefused, match=GONE):
        session.commit()
    driver_of(session).execute("INSERT INTO orders VALUES (7)")


def by_hand_after_an_error(shop: Service, session: Session) -> None:
    session.execute(text("SAVEPOINT mine"))
    data_then_event(shop, session)
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT * FROM nowhere"))
    session.execute(text("ROLLBACK TO mine"))


def by_hand_after_an_error_behind_another(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("SAVEPOINT mine"))
    write(session, 2)
    add(shop, session)
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT * FROM nowhere"))
    session.execute(text("ROLLBACK TO mine"))


def in_a_block_that_has_failed(shop: Service, session: Session) -> None:
    write(session, 2)

    def act() -> None:
        write(session)
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT * FROM nowhere"))
        add(shop, session)
        with pytest.raises(DBAPIError, match="aborted"):
            session.execute(READ)

    fail_in_block(session, act)


def by_hand_around_a_nested_one(shop: Service, session: Session) -> None:
    write(session, 2)
    session.execute(text("SAVEPOINT mine"))
    data_then_event(shop, session)
    with session.begin_nested() as savepoint:
        session.execute(READ)
        savepoint.rollback()
    session.execute(READ)
    session.execute(text("ROLLBACK TO mine"))


def by_hand_around_a_nested_one_at_the_end(shop: Service, session: Session) -> None:
    write(session, 2)
    session.execute(text("SAVEPOINT mine"))
    data_then_event(shop, session)
    with session.begin_nested() as savepoint:
        session.execute(READ)
        savepoint.rollback()
    session.execute(text("ROLLBACK TO mine"))


def by_hand_behind_another_around_a_nested_one(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("SAVEPOINT mine"))
    write(session, 2)
    add(shop, session)
    with session.begin_nested() as savepoint:
        session.execute(READ)
        savepoint.rollback()
    session.execute(text("ROLLBACK TO mine"))


def by_hand_around_a_nested_one_that_has_failed(shop: Service, session: Session) -> None:
    by_hand_after_an_error(shop, session)
    savepoint = session.begin_nested()
    with pytest.raises(psycopg.Error):
        driver_of(session).execute("SELECT * FROM nowhere")
    with pytest.raises(DBAPIError):
        session.execute(text("ROLLBACK TO nothing"))
    savepoint.rollback()


LOSSES = (
    by_hand_around_a_nested_one_that_has_failed,
    rolled_back_at_once,
    object_in_a_block,
    objects_undone_behind_the_event,
    object_behind_the_event_in_a_block,
    object_by_hand,
    object_behind_the_event_by_hand,
    object_in_a_savepoint_of_the_connection,
    connection_rolled_back,
    rolled_back_when_the_first_statement_failed,
    by_hand_behind_a_commit_that_failed,
    by_hand_before_the_commit,
    among_other_statements,
    behind_a_comment,
    refused_and_gone_on,
    rolled_back_and_gone_on,
    rolled_back_before_a_nested_one,
    rolled_back_before_an_object,
    in_a_block,
    in_a_block_behind_another,
    in_a_block_whose_statement_follows,
    by_hand,
    by_hand_behind_another,
    by_hand_before_a_third,
    written_in_a_block,
    written_by_hand,
    in_a_block_that_has_failed,
    by_hand_after_an_error,
    by_hand_after_an_error_behind_another,
    by_hand_around_a_nested_one,
    by_hand_around_a_nested_one_at_the_end,
    by_hand_behind_another_around_a_nested_one,
)


@pytest.mark.parametrize("lose", LOSSES)
def test_rollback_without_the_session_refuses_the_commit(
    shop: Service, lose: Callable[[Service, Session], None]
) -> None:
    with pytest.raises(TransactionRefused, match=GONE), Session(shop.engine) as session:  # noqa: PT012
        lose(shop, session)
        session.commit()
    assert counts(shop) == (0, 0)


# A session gets no event for the commit of its connection.
@pytest.mark.filterwarnings("ignore:transaction already deassociated")
@pytest.mark.parametrize("lose", [each for each in LOSSES if each is not by_hand_before_the_commit])
def test_rollback_without_session_refuses_a_connection_commit(
    shop: Service, lose: Callable[[Service, Session], None]
) -> None:
    with pytest.raises(TransactionRefused, match=GONE), Session(shop.engine) as session:  # noqa: PT012
        lose(shop, session)
        session.connection().commit()
    assert counts(shop) == (0, 0)


@pytest.mark.parametrize("lose", [by_hand, by_hand_behind_another, written_by_hand])
def test_rollback_without_the_session_refuses_two_phases(
    shop: Service, lose: Callable[[Service, Session], None]
) -> None:
    with Session(shop.engine, twophase=True) as session:
        lose(shop, session)
        with pytest.raises(TransactionRefused, match=GONE):
            session.commit()
    assert counts(shop) == (0, 0)
    assert shop.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []


def test_a_lost_transaction_is_refused_at_the_next_statement(shop: Service) -> None:
    with Session(shop.engine) as session:
        rolled_back_at_once(shop, session)
        with pytest.raises(TransactionRefused, match=GONE):
            session.execute(READ)


def nested_around_the_second(shop: Service, session: Session) -> None:
    add(shop, session)
    with session.begin_nested() as savepoint:
        write(session, 2)
        add(shop, session)
        session.execute(READ)
        savepoint.rollback()
    write(session)


def nested_around_the_mark(shop: Service, session: Session) -> None:
    add(shop, session)
    savepoint = session.begin_nested()
    session.execute(READ)
    savepoint.rollback()
    session.execute(READ)
    write(session)


def nested_and_released_by_hand_inside(shop: Service, session: Session) -> None:
    event_then_data(shop, session)
    with session.begin_nested():
        session.execute(text("SAVEPOINT mine"))
        session.execute(READ)
        session.execute(text("RELEASE SAVEPOINT mine"))


def undone_by_hand_behind_the_event(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("SAVEPOINT mine"))
    write(session, 2)
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


def undone_in_a_block_behind_the_event(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    fail_in_block(session, lambda: write(session, 2))


def undone_in_a_block_behind_what_is_written(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    flush_early(shop, session)
    fail_in_block(session, lambda: write(session, 2))


def added_in_a_block_that_ends_well(shop: Service, session: Session) -> None:
    session.execute(READ)
    with driver_of(session).transaction():
        data_then_event(shop, session)
        session.execute(READ)


def in_a_case(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("/* a */ SELECT CASE WHEN true THEN 1 ELSE 2 /* b */ END"))


def behind_many_comments(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("/* a line of a header */\n" * 100 + "SELECT 1"))


def undone_by_hand_after_an_error(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    session.execute(text("SAVEPOINT mine"))
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT * FROM nowhere"))
    session.execute(text("ROLLBACK TO mine"))


def undone_around_what_is_lost_behind_the_event(shop: Service, session: Session) -> None:
    data_then_event(shop, session)
    for lose in (by_hand, by_hand_after_an_error, by_hand_behind_another):
        with session.begin_nested() as savepoint:
            session.execute(text("DELETE FROM orders"))
            lose(shop, session)
            savepoint.rollback()


def undone_around_what_is_lost(shop: Service, session: Session) -> None:
    write(session, 3)
    for lose in (by_hand, by_hand_after_an_error, by_hand_behind_another):
        with session.begin_nested() as savepoint:
            lose(shop, session)
            savepoint.rollback()
    session.execute(text("DELETE FROM orders"))
    data_then_event(shop, session)


def failed_in_a_savepoint(shop: Service, session: Session) -> None:
    add(shop, session)
    with pytest.raises(DBAPIError), session.begin_nested():
        session.execute(text("SELECT * FROM nowhere"))
    write(session)


def nested_around_a_block_that_has_failed(shop: Service, session: Session) -> None:
    add(shop, session)
    with session.begin_nested() as savepoint:
        in_a_block_that_has_failed(shop, session)
        savepoint.rollback()
    write(session)


def nested_around_all_and_then_by_the_driver(shop: Service, session: Session) -> None:
    with session.begin_nested() as savepoint:
        data_then_event(shop, session)
        savepoint.rollback()
    driver_of(session).rollback()
    event_then_data(shop, session)


@pytest.mark.parametrize(
    "keep",
    [
        data_then_event,
        nested_around_all_and_then_by_the_driver,
        nested_around_a_block_that_has_failed,
        event_then_data,
        nested_around_the_second,
        nested_around_the_mark,
        nested_and_released_by_hand_inside,
        undone_by_hand_behind_the_event,
        undone_in_a_block_behind_the_event,
        undone_in_a_block_behind_what_is_written,
        added_in_a_block_that_ends_well,
        undone_by_hand_after_an_error,
        undone_around_what_is_lost,
        undone_around_what_is_lost_behind_the_event,
        failed_in_a_savepoint,
        in_a_case,
        behind_many_comments,
    ],
)
def test_transaction_that_keeps_events_and_data_is_committed(
    shop: Service, keep: Callable[[Service, Session], None]
) -> None:
    with Session(shop.engine) as session:
        keep(shop, session)
        session.commit()
    assert counts(shop) == (1, 1)


def test_a_session_takes_events_again_after_a_lost_transaction(shop: Service) -> None:
    with Session(shop.engine) as session:
        by_hand_behind_another(shop, session)
        with pytest.raises(TransactionRefused, match=GONE):
            session.commit()
        session.rollback()
        data_then_event(shop, session)
        session.commit()
        driver_of(session).rollback()
        write(session, 2)
        add(shop, session)
        session.commit()
    assert counts(shop) == (2, 2)


@pytest.mark.parametrize(
    ("act", "asked"),
    [
        (data_then_event, []),
        (event_then_data, []),
        (nested_around_the_second, []),
        (nested_and_released_by_hand_inside, ["mark", "look"]),
        (undone_by_hand_behind_the_event, ["mark", "look"]),
    ],
)
def test_marks_are_read_only_where_the_driver_has_no_answer(
    shop: Service, act: Callable[[Service, Session], None], asked: list[str]
) -> None:
    with marks_in(shop) as found, Session(shop.engine) as session:
        act(shop, session)
        session.commit()
    assert found == asked


def test_marks_of_the_last_transaction_are_not_read(shop: Service) -> None:
    with Session(shop.engine) as session:
        undone_by_hand_behind_the_event(shop, session)
        session.commit()
        with marks_in(shop) as found:
            add(shop, session)
            write(session, 3)
            session.commit()
    assert found == []
    assert counts(shop) == (2, 2)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_statement_that_the_driver_does_not_send_begins_nothing(shop: Service, driver: str) -> None:
    engine = create_engine(shop.engine.url.set(drivername=f"postgresql+{driver}"))
    with Session(engine) as session:
        add(shop, session)
        with pytest.raises(Exception, match=r"object|adapt"):
            session.execute(text("SELECT :it"), {"it": object()})
        session.connection().connection.rollback()
        write(session)
        session.commit()
    engine.dispose()
    assert counts(shop) == (1, 1)


def test_cut_connection_raises_the_database_error(shop: Service) -> None:
    with Session(shop.engine) as session:
        add(shop, session)
        session.execute(text("SAVEPOINT mine"))
        add(shop, session)
        cut(session, by=shop.engine)
        with pytest.raises(DBAPIError) as failed:
            session.execute(READ)
        assert failed.value.connection_invalidated
    assert counts(shop) == (0, 0)


def test_connection_cut_at_the_commit_raises_the_database_error(shop: Service) -> None:
    with Session(shop.engine) as session:
        by_hand_behind_another(shop, session)
        connection = session.connection()
        cut(connection, by=shop.engine)
        with pytest.raises(DBAPIError) as failed:
            connection.commit()
        assert failed.value.connection_invalidated
    assert counts(shop) == (0, 0)


def test_a_savepoint_without_events_connects_to_nothing(shop: Service) -> None:
    with Session(shop.engine) as session:
        data_then_event(shop, session)
        session.commit()
        with session.begin_nested():
            assert session.in_nested_transaction()
        assert not session.get_transaction().connections  # type: ignore[union-attr]
        session.commit()


def test_objects_flushed_with_the_commit_need_no_marks(shop: Service) -> None:
    with marks_in(shop) as found, Session(shop.engine) as session:
        add(shop, session)
        session.add(Order(id=1))
        session.commit()
    assert found == []
    assert counts(shop) == (1, 1)


def test_rolled_back_connection_of_the_caller_takes_new_events(shop: Service) -> None:
    with shop.engine.connect() as connection:
        with Session(connection, join_transaction_mode="rollback_only") as session:
            data_then_event(shop, session)
            connection.rollback()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            data_then_event(shop, session)
            session.commit()
        connection.commit()
    assert counts(shop) == (1, 1)


def test_connection_of_the_caller_may_be_committed_by_its_driver(shop: Service) -> None:
    with shop.engine.connect() as connection:
        for number in (1, 3):
            session = Session(connection)
            write(session, number)
            add(shop, session)
            connection.connection.commit()
            write(session, number + 1)
            add(shop, session)
            session.commit()
            connection.commit()
    assert counts(shop) == (4, 4)


def test_driver_may_roll_back_a_connection_after_its_events(
    shop: Service,
) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        data_then_event(shop, session)
        session.commit()
        session.execute(READ)
        driver_of(session).rollback()
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT * FROM nowhere"))
        driver_of(session).rollback()
        write(session, 2)
        add(shop, session)
        session.commit()
    assert counts(shop) == (2, 2)


def test_data_is_written_before_an_event_inserted_at_once(shop: Service) -> None:
    """So that the transaction has the locks of its rows when its events get their numbers."""
    written: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            written.append(statement.split()[2])

    event.listen(shop.engine, "before_cursor_execute", note)
    with shop.engine.connect() as connection, Session(connection) as session:
        session.add(Order(id=1))
        add(shop, session)
    event.remove(shop.engine, "before_cursor_execute", note)
    assert written == ["orders", "shield_outbox"]


def test_unclosed_sessions_are_dropped_with_their_events(shop: Service) -> None:
    with shop.engine.connect() as connection:
        sessions = [Session(connection) for _ in range(4)]
        for number, session in enumerate(sessions):
            write(session, number)
            add(shop, session)
            connection.commit()
        assert len(connection.get_execution_options()[BUFFERS]) == 1
    assert counts(shop) == (4, 4)


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "control_fully"])
def test_object_and_event_inserted_at_once_are_undone_together(shop: Service, mode: Any) -> None:
    with shop.engine.connect() as connection:
        connection.execute(READ)
        with Session(connection, join_transaction_mode=mode) as session:
            session.connection()
            savepoint = connection.begin_nested()
            session.add(Order(id=1))
            add(shop, session)
            savepoint.rollback()
            session.commit()
        connection.commit()
    assert counts(shop) == (0, 0)


def test_a_block_in_a_pipeline_is_refused_by_name(shop: Service) -> None:
    with Session(shop.engine) as session:
        write(session)
        with (
            pytest.raises(TransactionRefused, match="pipeline"),
            driver_of(session).pipeline(),
            driver_of(session).transaction(),
        ):
            add(shop, session)
        session.rollback()
    assert counts(shop) == (0, 0)


def test_a_pipeline_takes_events(shop: Service) -> None:
    with Session(shop.engine) as session:
        with driver_of(session).pipeline():
            event_then_data(shop, session)
        session.commit()
    assert counts(shop) == (1, 1)


def test_object_is_lost_with_an_event_inserted_at_once(shop: Service) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        add(shop, session)
        session.execute(READ)
        session.add(Order(id=1))
        connection.connection.driver_connection.rollback()  # type: ignore[union-attr]
        with pytest.raises(TransactionRefused, match=GONE):
            session.commit()
    assert counts(shop) == (0, 0)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_asynchronous_session_detects_a_rollback_of_the_driver(shop: Service, driver: str) -> None:
    async def lose() -> None:
        engine = create_async_engine(shop.engine.url.set(drivername=f"postgresql+{driver}"))
        async with AsyncSession(engine) as session:
            await session.execute(text("INSERT INTO orders (id) VALUES (1)"))
            add(shop, session)
            raw = (await (await session.connection()).get_raw_connection()).driver_connection
            await (raw.rollback() if driver == "psycopg" else raw.execute("ROLLBACK"))
            with pytest.raises(TransactionRefused, match=GONE):
                await session.commit()
        await engine.dispose()

    asyncio.run(lose())
    assert counts(shop) == (0, 0)


def test_a_savepoint_by_hand_may_be_rolled_back_after_an_error(shop: Service) -> None:
    """asyncpg does not report that its transaction has failed: only the mark fails."""

    async def lose() -> None:
        engine = create_async_engine(shop.engine.url.set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session:
            await session.execute(text("SAVEPOINT mine"))
            await session.execute(text("INSERT INTO orders (id) VALUES (1)"))
            add(shop, session)
            with pytest.raises(DBAPIError):
                await session.execute(text("SELECT * FROM nowhere"))
            await session.execute(text("ROLLBACK TO mine"))
            with pytest.raises(TransactionRefused, match=GONE):
                await session.commit()
        await engine.dispose()

    asyncio.run(lose())
    assert counts(shop) == (0, 0)


def test_event_is_refused_where_asyncpg_commits_each_statement(shop: Service) -> None:
    """SQLAlchemy does not begin another transaction there after a rollback by the driver."""

    def lose(connection: Connection) -> None:
        with Session(connection) as session:
            session.execute(READ)
            await_only(driver_of(session).execute("ROLLBACK"))
            with pytest.raises(TransactionRefused, match=GONE):
                add(shop, session)

    async def main() -> None:
        engine = create_async_engine(shop.engine.url.set(drivername="postgresql+asyncpg"))
        async with engine.connect() as connection:
            await connection.run_sync(lose)
        await engine.dispose()

    asyncio.run(main())
    assert counts(shop) == (0, 0)


def test_async_session_takes_no_event_in_a_block_of_the_driver(shop: Service) -> None:
    async def lose() -> None:
        engine = create_async_engine(shop.engine.url.set(drivername="postgresql+psycopg"))
        async with AsyncSession(engine) as session:
            raw = (await (await session.connection()).get_raw_connection()).driver_connection
            async with raw.transaction():
                await session.execute(text("INSERT INTO orders (id) VALUES (1)"))
                with pytest.raises(TransactionRefused, match="block of the driver"):
                    add(shop, session)
            await session.commit()
        await engine.dispose()

    asyncio.run(lose())
    assert counts(shop) == (1, 0)


def test_sqlite_transaction_has_no_marks_and_no_refusals(tmp_path: Path) -> None:
    """The SQLite driver does not report transactions, and no mark is set."""
    url = migrated_sqlite(tmp_path / "shop.db", shards=4)
    engine = create_engine(url)
    settings = Settings(source="shop", database_url=url, shards=4)
    with closing(ShieldTx(settings, engine=engine)) as app:
        app.declare("orders.placed")
        with Session(engine) as session:
            app.outbox.add(session, placed())
            for statement in ("SAVEPOINT mine", "SELECT 1", "RELEASE mine"):
                session.execute(text(statement))
            session.commit()
            assert session.scalar(text("SELECT count(*) FROM shield_outbox")) == 1
    engine.dispose()
