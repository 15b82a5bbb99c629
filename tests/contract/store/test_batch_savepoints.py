"""Savepoints that follow one another in the transaction of a batch, on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session

from shieldtx.errors import HandlerError
from shieldtx.store.prepared_statements import in_pipeline
from tests.contract.conftest import POSTGRESQL, Stores
from tests.contract.store.test_inbox_batches import (
    DONE,
    IN_HAND,
    effect_table,
    effects_of,
    rows,
    start,
    write,
)
from tests.contract.store.test_outbox import envelope
from tests.support.savepoint_messages import savepoint_messages

__all__ = ["effect_table"]

pytestmark = [pytest.mark.usefixtures("effect_table"), pytest.mark.begun_by_hand]


class Base(DeclarativeBase):
    """The base of the mapped class."""


class Effect(Base):
    """The effects as objects."""

    __tablename__ = "effect"

    n: Mapped[int] = mapped_column(primary_key=True)


@contextmanager
def texts() -> Iterator[list[str]]:
    """Collect what is sent about savepoints past SQLAlchemy, by their first words."""
    seen: list[str] = []

    def note(message: str) -> None:
        seen.append("; ".join(each.split()[0] for each in message.split("; ")))

    with savepoint_messages(note):
        yield seen


def test_savepoint_undoes_only_what_came_later(stores: Stores) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        stores.inbox.reset_session(session)
        savepoint.renew()
        write(session, 2)
        assert savepoint.undo()
        savepoint.set_again()
        write(session, 3)
        savepoint.renew()
        write(session, 4)
        assert savepoint.undo()
    assert effects_of(stores) == [1, 3]
    assert rows(stores) == [DONE] * 2


def test_error_in_a_later_savepoint_undoes_the_transaction(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with suppress(ArithmeticError), stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        savepoint.renew()
        raise ArithmeticError
    assert effects_of(stores) == []


def test_renewal_is_one_message_where_the_driver_sends_several(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        with texts() as seen:
            savepoint.renew()
        savepoint.release()
    takes_several = stores.engine.dialect.name == "postgresql"
    assert seen == (["RELEASE; SAVEPOINT"] if takes_several else ["RELEASE", "SAVEPOINT"])


def test_objects_of_a_kept_part_stay_when_the_next_is_undone(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        session.add(kept := Effect(n=1))
        session.flush()
        stores.inbox.reset_session(session)
        savepoint.renew()
        session.add(undone := Effect(n=2))
        session.flush()
        assert savepoint.undo()
        assert object_session(undone) is None
        assert session.get(Effect, 1) is not kept
    assert effects_of(stores) == [1]


def test_pending_objects_belong_to_the_kept_part(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        session.add(Effect(n=1))
        savepoint.renew()
        assert savepoint.undo()
    assert effects_of(stores) == [1]


def test_listeners_for_savepoints_hear_each_of_them(stores: Stores) -> None:
    heard: list[str] = []
    receipt = start(stores, envelope("a"))
    event.listen(stores.engine, "savepoint", lambda *_: heard.append("set"))
    event.listen(stores.engine, "release_savepoint", lambda *_: heard.append("released"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        savepoint.renew()
        write(session, 2)
        assert savepoint.undo()
    assert heard == ["set", "released", "set"]
    assert effects_of(stores) == [1]


@contextmanager
def listening(name: str, function: Callable[..., None]) -> Iterator[None]:
    """Let a function listen to all sessions, as an application's audit does."""
    event.listen(Session, name, function)
    try:
        yield
    finally:
        event.remove(Session, name, function)


def test_listeners_of_sessions_hear_the_end_of_each_part(stores: Stores) -> None:
    """An audit writes what it has collected before an end, and forgets it at an undo."""
    receipt = start(stores, envelope("a"))
    collected: list[int] = []

    def write_collected(session: Session) -> None:
        while collected:
            write(session, collected.pop())

    def forget(*_: object) -> None:
        collected.clear()

    with (
        listening("before_commit", write_collected),
        listening("after_soft_rollback", forget),
        stores.inbox.effects(receipt.started) as session,
    ):
        savepoint = stores.inbox.savepoint(session)
        collected.append(1)
        savepoint.renew()
        collected.append(2)
        assert savepoint.undo()
    assert effects_of(stores) == [1]


def write_in_savepoints(connection: Connection, *numbers: int) -> None:
    for number in numbers:
        with connection.begin_nested():
            connection.execute(insert(Effect.__table__).values(n=number))


def test_listeners_may_set_savepoints_before_the_end_of_a_part(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    numbers = [1, 2, 3]

    def write_all(session: Session) -> None:
        if numbers:
            connection = session.connection()
            write_in_savepoints(connection, numbers.pop(), numbers.pop())

    with listening("before_commit", write_all), stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        savepoint.renew()
        write(session, 4)
        assert savepoint.undo()
        numbers.clear()
    assert effects_of(stores) == [2, 3]


@pytest.mark.parametrize("name", ["after_transaction_create", "after_begin", "after_commit"])
def test_listeners_may_set_savepoints_between_two_parts(stores: Stores, name: str) -> None:
    receipt = start(stores, envelope("a"))
    known: list[Connection] = []

    def write_one(session: Session, *_: object) -> None:
        if known:
            write_in_savepoints(known.pop(), 1)

    with listening(name, write_one), stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        known.append(session.connection())
        savepoint.renew()
        write(session, 2)
        assert savepoint.undo()
        savepoint.set_again()
        write(session, 3)
        savepoint.release()
    assert effects_of(stores)[-1] == 3
    assert not known


def test_objects_that_a_flush_brings_about_belong_to_their_part(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    reactions = [2]

    def add_next(session: Session, _: object) -> None:
        if reactions:
            session.add(Effect(n=reactions.pop()))

    with (
        listening("after_flush_postexec", add_next),
        stores.inbox.effects(receipt.started) as session,
    ):
        savepoint = stores.inbox.savepoint(session)
        session.add(Effect(n=1))
        savepoint.renew()
        assert savepoint.undo()
    assert effects_of(stores) == [1, 2]


def test_open_savepoint_inside_is_released_too(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        session.begin_nested()
        write(session, 1)
        savepoint.renew()
        write(session, 2)
        assert savepoint.undo()
        assert not session.in_nested_transaction()
    assert effects_of(stores) == [1]


def test_savepoint_that_the_handler_released_is_an_error(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))

    def release_and_go_on() -> None:
        with stores.inbox.effects(receipt.started) as session:
            savepoint = stores.inbox.savepoint(session)
            write(session, 1)
            connection: Any = session.connection()
            name = connection.get_nested_transaction()._savepoint
            connection.connection.cursor().execute(f"RELEASE SAVEPOINT {name}")
            savepoint.release()

    with pytest.raises(DBAPIError):
        release_and_go_on()
    assert effects_of(stores) == []
    assert rows(stores) == [IN_HAND]


def test_savepoint_of_a_failed_flush_cannot_be_released(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with suppress(HandlerError), stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        _rolled_back(session)
        with pytest.raises(SQLAlchemyError):
            savepoint.release()
        raise HandlerError("as the executor does")
    assert effects_of(stores) == []


def _rolled_back(session: Session) -> None:
    nested = session.get_nested_transaction()
    assert nested is not None
    session.add(Effect(n=object()))
    with pytest.raises(StatementError):
        session.flush()
    assert not nested.is_active


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
def test_pipeline_gets_one_statement_a_message(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        connection = session.connection()
        driver: Any = connection.connection.driver_connection
        assert not in_pipeline(connection)
        with driver.pipeline(), texts() as seen:
            assert in_pipeline(connection)
            savepoint.renew()
        assert seen == ["RELEASE", "SAVEPOINT"]
        write(session, 2)
        assert savepoint.undo()
    assert effects_of(stores) == [1]
