"""A service that only writes events needs one privilege: INSERT on the outbox."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from shieldtx import Event
from tests.support.service import Service, drain, make_topics


def test_a_role_that_may_only_insert_can_write_events(
    make_service: Callable[..., Service],
) -> None:
    service = make_service("orders")
    service.app.declare("orders.placed")
    make_topics(service)
    service.execute("DROP ROLE IF EXISTS shop")
    service.execute("CREATE ROLE shop LOGIN PASSWORD 'shop'")
    service.execute("GRANT INSERT ON shield_outbox TO shop")
    engine = create_engine(service.engine.url.set(username="shop", password="shop"))
    try:
        with Session(engine) as session, session.begin():
            service.app.outbox.add(session, Event(type="orders.placed", key="a", biz_key="a"))
        with (
            pytest.raises(ProgrammingError, match="permission denied"),
            engine.connect() as connection,
        ):
            connection.exec_driver_sql("SELECT * FROM shield_outbox")
        relay = service.relay()
        drain(relay)
        assert service.outbox() == {"PROCESSED": 1}
    finally:
        engine.dispose()
        service.execute("DROP OWNED BY shop")
        service.execute("DROP ROLE shop")
