"""The query of another database for the location of its table, with a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine
from sqlalchemy.exc import OperationalError

from shieldtx.store.table_location import TableLocation

TABLE = Table("orders", MetaData(), Column("id", Integer))


@pytest.fixture
def caller() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


def failing(error: Exception) -> Engine:
    """Return an engine whose database cannot be reached."""

    def connect() -> NoReturn:
        raise error

    return create_engine("sqlite://", creator=connect)


@pytest.mark.parametrize("longest_s", [None, 5.0])
def test_error_of_the_other_database_is_raised_unchanged(
    caller: Engine, longest_s: float | None
) -> None:
    refused = OperationalError("connect", {}, Exception("refused"))
    location = TableLocation(failing(refused), TABLE, longest_s=longest_s)
    with caller.connect() as connection, pytest.raises(OperationalError, match="refused"):
        location.check(connection)


def test_time_limit_of_the_driver_is_raised_unchanged(caller: Engine) -> None:
    location = TableLocation(failing(TimeoutError("of the driver")), TABLE, longest_s=5.0)
    with caller.connect() as connection, pytest.raises(TimeoutError, match="of the driver"):
        location.check(connection)
