"""Savepoints that follow one another in the transaction of a batch, on each database."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session

from shieldtx.errors import HandlerError
from shieldtx.ports.savepoint import Savepoint
from tests.contract.conftest import Stores
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

__all__ = ["effect_table"]

pytestmark = [pytest.mark.usefixtures("effect_table"), pytest.mark.begun_by_hand]


class Base(DeclarativeBase):
    """The base of the mapped class."""


class Effect(Base):
    """The effects as objects."""

    __tablename__ = "effect"

    n: Mapped[int] = mapped_column(primary_key=True)


def next_one(stores: Stores, session: Session, savepoint: Savepoint) -> Savepoint:
    """Keep the effects since a savepoint, and set the next one."""
    savepoint.release()
    return stores.inbox.savepoint(session)


def test_savepoint_undoes_only_what_came_later(stores: Stores) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        stores.inbox.reset_session(session)
        savepoint = next_one(stores, session, savepoint)
        write(session, 2)
        assert savepoint.undo()
        savepoint.set_again()
        write(session, 3)
        savepoint = next_one(stores, session, savepoint)
        write(session, 4)
        assert savepoint.undo()
    assert effects_of(stores) == [1, 3]
    assert rows(stores) == [DONE] * 2


def test_error_in_a_later_savepoint_undoes_the_transaction(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with suppress(ArithmeticError), stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        savepoint = next_one(stores, session, savepoint)
        raise ArithmeticError
    assert effects_of(stores) == []


def test_objects_of_a_kept_part_stay_when_the_next_is_undone(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        session.add(kept := Effect(n=1))
        session.flush()
        stores.inbox.reset_session(session)
        savepoint = next_one(stores, session, savepoint)
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
        savepoint = next_one(stores, session, savepoint)
        assert savepoint.undo()
    assert effects_of(stores) == [1]


def test_open_savepoint_inside_is_released_too(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        session.begin_nested()
        write(session, 1)
        savepoint = next_one(stores, session, savepoint)
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
