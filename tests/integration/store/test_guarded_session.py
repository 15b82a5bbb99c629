"""Transactions that only shieldtx may end: cut connections, settings and open savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session

from shieldtx.store.guarded_session import commits_refused, end_event, guarded_session
from tests.support.lost_connections import cut


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    yield made
    made.dispose()


def act(engine: Engine, work: Callable[[Session], object]) -> None:
    """Act as a handler, and prepare the session for the next handler."""
    with guarded_session(engine, "handler") as (session, _), commits_refused(session):
        work(session)
        end_event(session)


def test_connection_cut_after_a_setting_raises_the_loss(engine: Engine) -> None:
    """SQLAlchemy cannot detach a lost connection, and its error would hide the loss."""

    def set_and_be_cut(session: Session) -> None:
        session.execute(text("SET application_name = 'mine'"))
        cut(session, by=engine)
        session.execute(text("SELECT 1"))

    with pytest.raises(DBAPIError) as failed:
        act(engine, set_and_be_cut)
    assert failed.value.connection_invalidated


def test_connection_with_settings_of_a_handler_is_not_reused(engine: Engine) -> None:
    act(engine, lambda session: session.execute(text("SET application_name = 'mine'")))
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW application_name")) != "mine"


@pytest.mark.parametrize("has_begun", [True, False])
def test_savepoints_that_are_left_open_are_released(engine: Engine, has_begun: bool) -> None:
    with guarded_session(engine, "handler") as (session, connection), commits_refused(session):
        session.begin_nested()
        connection.begin_nested()
        session.begin_nested()
        if has_begun:
            session.execute(text("SELECT 1"))
        end_event(session)
        assert not session.in_nested_transaction()
        assert not connection.in_nested_transaction()


def test_savepoint_ended_by_its_connection_raises_at_the_end(
    engine: Engine,
) -> None:
    def leave_open(session: Session) -> None:
        session.begin_nested()
        session.execute(text("SELECT 1"))
        savepoint = session.connection().get_nested_transaction()
        assert savepoint is not None
        savepoint.rollback()

    with pytest.raises(InvalidRequestError, match="inactive"):
        act(engine, leave_open)
