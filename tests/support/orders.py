"""Orders and their events in the tables of a service, for tests of callers' sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shieldtx import Event
from tests.support.service import Service


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def shop(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    service.app.declare("orders.placed")
    Base.metadata.create_all(service.engine)
    return service


def placed(payload: Any = None) -> Event:
    return Event(type="orders.placed", payload=payload)


def counts(shop: Service) -> tuple[int, int]:
    """Return how many orders and how many events exist."""
    orders, events = "SELECT count(*) FROM orders", "SELECT count(*) FROM shield_outbox"
    return shop.rows(orders)[0][0], shop.rows(events)[0][0]
