"""Events in the transactions of Django's ORM, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import django
import pytest
from django.conf import settings as django_settings
from django.db import IntegrityError, connection, connections, transaction
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import (
    ConfigurationError,
    Event,
    EventRefused,
    HandlerError,
    RetryPolicy,
    ShieldTx,
    TransactionRefused,
)
from shieldtx.contrib.django import DjangoOutbox, refuse_orm
from tests.support.service import Service, drain

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)"


@pytest.fixture(scope="module", autouse=True)
def django_is_set_up() -> None:
    django_settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
    django.setup()


@pytest.fixture
def shop(make_service: Callable[..., Service]) -> Iterator[ShieldTx]:
    """A service, whose database is also the default one of Django."""
    service = make_service("shop")
    url = service.engine.url
    databases = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username,
            "PASSWORD": url.password,
            "HOST": url.host,
            "PORT": url.port,
        },
        "files": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    }
    connections.settings = connections.configure_settings(databases)
    service.app.declare("orders.placed")
    with connection.cursor() as cursor:
        cursor.execute(ORDERS)
    yield service.app
    for alias in databases:
        connections[alias].close()
        del connections[alias]


def order(number: int) -> Event:
    return Event(type="orders.placed", payload={"id": number}, key="ada", biz_key=str(number))


def store(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])


def stored(shield: ShieldTx) -> tuple[list[str], list[int]]:
    """Return the business keys of the events and the numbers of the orders that are committed."""
    with shield.engine.connect() as own:
        events = own.scalars(text("SELECT biz_key FROM shield_outbox ORDER BY seq")).all()
        orders = own.scalars(text("SELECT id FROM orders ORDER BY id")).all()
    return list(events), list(orders)


def place_and_fail(outbox: DjangoOutbox, number: int) -> None:
    """Store an order and its event in a block that is rolled back."""
    with suppress(KeyError), transaction.atomic():
        store(number)
        outbox.add(order(number))
        raise KeyError


def test_event_commits_with_the_rows(shop: ShieldTx) -> None:
    outbox = DjangoOutbox(shop)
    with transaction.atomic():
        store(1)
        event_id = outbox.add(order(1))
        assert stored(shop) == ([], [])
    assert stored(shop) == (["1"], [1])
    with shop.engine.connect() as own:
        assert own.scalar(text("SELECT event_id FROM shield_outbox")) == event_id


def test_event_rolls_back_with_the_rows(shop: ShieldTx) -> None:
    place_and_fail(DjangoOutbox(shop), 1)
    assert stored(shop) == ([], [])


def test_event_shares_the_savepoint_of_its_rows(shop: ShieldTx) -> None:
    outbox = DjangoOutbox(shop)
    with transaction.atomic():
        store(1)
        outbox.add(order(1))
        place_and_fail(outbox, 2)
        store(3)
        outbox.add(order(3))
    assert stored(shop) == (["1", "3"], [1, 3])


def test_refused_event_leaves_the_transaction_usable(shop: ShieldTx) -> None:
    outbox = DjangoOutbox(shop)
    with transaction.atomic():
        outbox.add_all([order(1), order(2)])
    with transaction.atomic():
        store(3)
        with pytest.raises(EventRefused, match=r"biz_key: .* was written before"):
            outbox.add_all([order(3), order(2)])
    assert stored(shop) == (["1", "2"], [3])


def test_event_outside_of_a_transaction_is_refused(shop: ShieldTx) -> None:
    with pytest.raises(TransactionRefused, match=r"within `transaction.atomic\(\)`"):
        DjangoOutbox(shop).add(order(1))
    assert stored(shop) == ([], [])


def test_event_in_a_failed_transaction_is_refused(shop: ShieldTx) -> None:
    outbox = DjangoOutbox(shop)
    with transaction.atomic():
        store(1)
    with transaction.atomic():
        with suppress(IntegrityError), transaction.atomic(savepoint=False):
            store(1)
        with pytest.raises(TransactionRefused, match="can only roll back"):
            outbox.add(order(1))
    assert stored(shop) == ([], [1])


def test_other_databases_are_refused(shop: ShieldTx) -> None:
    outbox = DjangoOutbox(shop, using="files")
    with (
        pytest.raises(ConfigurationError, match="'files' is sqlite with sqlite3"),
        transaction.atomic(using="files"),
    ):
        outbox.add(order(1))


def test_commit_wakes_the_relay_and_a_rollback_does_not(
    shop: ShieldTx, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints: list[None] = []
    monkeypatch.setattr(type(shop.connections), "hint", lambda _: hints.append(None))
    outbox = DjangoOutbox(shop)
    with transaction.atomic():
        outbox.add(order(1))
        assert not hints
    assert len(hints) == 1
    place_and_fail(outbox, 2)
    assert len(hints) == 1


def test_orm_in_a_handler_fails_the_attempt(shop: ShieldTx) -> None:
    group = shop.consumer("warehouse")
    group.intercepts(refuse_orm)

    @group.handles("orders.placed", retry=RetryPolicy(max_attempts=1))
    def handle(session: Session, event: Event) -> None:
        store(event.payload["id"])

    shop.broker.topics().create(shop.topics(), partitions=1, replication=1)
    with transaction.atomic():
        DjangoOutbox(shop).add(order(9))
    relay = shop.build_relay()
    relay.renew()
    drain(relay, shop.build_consumer("warehouse"))
    with shop.engine.connect() as own:
        status, error = own.execute(text("SELECT status, last_error FROM shield_inbox")).one()
    assert status == "MAX_RECONSUMED"
    assert "Django's ORM on database 'default', which is not in the transaction" in error
    assert stored(shop)[1] == []
    store(9)
    assert stored(shop)[1] == [9], "the ORM works again after the handler"


def test_guard_refuses_coroutine_handlers(shop: ShieldTx) -> None:
    async def handle() -> None:
        refuse_orm(None, order(9), lambda: None)

    with pytest.raises(HandlerError, match="guards plain handlers only"):
        asyncio.run(handle())


def test_connection_that_is_used_often_gets_no_handlers(shop: ShieldTx) -> None:
    outbox = DjangoOutbox(shop)
    for number in range(3):
        with transaction.atomic():
            outbox.add(order(number))
    assert len(connection.connection._notice_handlers) <= 1


def test_connection_may_be_wrapped_by_an_observer(shop: ShieldTx) -> None:
    class Observed:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    with transaction.atomic():
        store(1)
        connection.connection = Observed(connection.connection)
        DjangoOutbox(shop).add(order(1))
        connection.connection = connection.connection.inner
    assert stored(shop) == (["1"], [1])
