"""How long a client may be silent in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.pool import NullPool

from shieldtx.store.connections import Pooler, open_engine
from shieldtx.store.idleness import limited_view
from tests.support.postgres_settings import IDLE_LIMIT, setting

YEAR = timedelta(days=365)


@pytest.fixture
def plain(migrated_url: str) -> Iterator[Engine]:
    engine = create_engine(migrated_url, poolclass=NullPool)
    yield engine
    engine.dispose()


def limits(connection: Connection) -> list[str]:
    """Return the limits for a client that sends nothing, and for a client that reads nothing."""
    return [setting(connection, name) for name in (IDLE_LIMIT, "tcp_user_timeout")]


def pooled(url: str, idle: timedelta) -> Engine:
    return open_engine(make_url(url), idle=lambda: idle, pooler=Pooler.TRANSACTION)


def session_of_ours(url: str, idle: timedelta) -> Engine:
    return open_engine(make_url(url), idle=lambda: idle)


def view(url: str, idle: timedelta) -> Engine:
    return limited_view(create_engine(url), idle=idle)


@pytest.mark.parametrize("make", [pooled, session_of_ours, view])
def test_a_limit_may_be_longer_than_the_server_can_count(
    migrated_url: str, make: Callable[[str, timedelta], Engine]
) -> None:
    engine = make(migrated_url, YEAR)
    with engine.begin() as connection:
        shown = limits(connection)
    engine.dispose()
    assert shown == ["2147483647ms", "2147483647"]


def test_a_limit_ends_with_its_transaction(migrated_url: str) -> None:
    engine = create_engine(migrated_url, pool_size=1, max_overflow=0)
    with limited_view(engine, idle=timedelta(seconds=7)).begin() as connection:
        assert limits(connection) == ["7s", "7000"]
    with engine.begin() as connection:
        assert limits(connection) == ["0", "0"]
    engine.dispose()


@pytest.mark.parametrize("make", [pooled, view])
def test_statements_on_a_lost_connection_are_not_committed(
    migrated_url: str, plain: Engine, make: Callable[[str, timedelta], Engine]
) -> None:
    with plain.begin() as other:
        other.execute(text("CREATE TABLE money (n int)"))
    engine = make(migrated_url, timedelta(seconds=90))
    with engine.connect() as connection:
        lost = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.commit()
        with plain.begin() as other:
            other.execute(text(f"SELECT pg_terminate_backend({lost}, 10000)"))
        with pytest.raises(DBAPIError):
            connection.execute(text("INSERT INTO money VALUES (1)"))
        with suppress(ResourceClosedError):
            connection.rollback()
        with pytest.raises(ResourceClosedError):
            connection.execute(text("INSERT INTO money VALUES (1)"))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO money VALUES (2)"))
    with plain.connect() as other:
        assert other.scalars(text("SELECT n FROM money")).all() == [2]
    engine.dispose()
