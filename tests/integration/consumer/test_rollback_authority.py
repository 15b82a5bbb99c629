"""Authority over rollbacks: forged, changed, replayed and unauthorised ones are parked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session

from shieldtx import Event, Refused
from shieldtx.brokers import cloudevents, signing
from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import DeliveryOutcome, Record
from tests.support.service import QUICK, Service, Wire, answer, drain, effect, make_topics

Make = Callable[..., Service]

SECRET = "known to orders and to stock alone"
OTHER_SECRET = "the key that a foreign producer assumes"


def refuse(session: Session, event: Event) -> None:
    raise Refused("sold out")


class Shop:
    """Orders, which writes and compensates, and stock, which refuses; the test intercepts its
    rollbacks.
    """

    def __init__(self, make: Make, wire: Wire, *, orders_key: str, stock_key: str) -> None:
        self.orders = make("orders", signing_key=orders_key)
        self.stock = make("stock", signing_key=stock_key)
        self.wire = wire
        self.orders.app.declare("orders.placed")
        self.orders.app.consumer("orders").compensates(
            "orders.placed", retry=QUICK, authorised=["stock"]
        )(effect("cancelled"))
        self.stock.app.consumer("stock").handles("orders.placed", retry=QUICK)(refuse)
        make_topics(self.orders, self.stock)
        self.upstream = self.orders.app.build_consumer("orders")
        self.caught: list[Record] = []

    def place(self, *keys: str) -> list[Event]:
        events = [Event(type="orders.placed", key=key, biz_key=f"order {key}") for key in keys]
        with self.orders.transaction() as session:
            self.orders.app.outbox.add_all(session, events)
        return events

    def refusals(self) -> list[Record]:
        """Let stock refuse the placed events, and keep its rollbacks off the topic."""
        self.wire.fate = self._catch
        drain(
            self.orders.relay(),
            self.stock.app.build_consumer("stock"),
        )
        drain(self.stock.relay())
        self.wire.fate = lambda record: None
        return self.caught

    def deliver(self, *records: Record) -> None:
        """Put records on their topics, and let orders read them."""
        published = self.wire.publisher().publish(list(records), timeout=5)
        assert {delivery.outcome for delivery in published} == {DeliveryOutcome.ACKNOWLEDGED}
        drain(self.upstream)

    def parked(self) -> list[tuple[str, bytes]]:
        """Return the reasons and the bodies of the records that orders parked."""
        rows = self.orders.rows("SELECT reason, record_value FROM shield_parked ORDER BY parked_at")
        return [(reason, bytes(value)) for reason, value in rows]

    def _catch(self, record: Record) -> object:
        if not record.topic.endswith(".rollback"):
            return None
        self.caught.append(record)
        return answer(DeliveryOutcome.ACKNOWLEDGED)


@pytest.fixture
def shop(make_service: Make, wire: Wire, caplog: pytest.LogCaptureFixture) -> Iterator[Shop]:
    with caplog.at_level(logging.DEBUG):
        yield Shop(make_service, wire, orders_key=SECRET, stock_key=SECRET)
    assert SECRET not in caplog.text


def with_headers(record: Record, **changes: bytes | None) -> Record:
    headers = {**dict(record.headers), **changes}
    return record._replace(headers=tuple((n, v) for n, v in headers.items() if v is not None))


def forged(event: Event, *, source: str = "stock") -> Envelope:
    """Return a rollback of a real event, from a sender that did not receive the event."""
    return Envelope(
        id=new_event_id(),
        type=event.type,
        source=source,
        topic=event.type,
        payload='{"reason":"because I can"}',
        time=datetime(2026, 3, 1, 10, 30, tzinfo=UTC),
        kind=TxKind.ROLLBACK,
        key=event.key,
        causation_id=event.id,
        causation_source="orders",
    )


def test_a_genuine_rollback_is_compensated(shop: Shop) -> None:
    shop.place("a", "b")
    records = shop.refusals()
    assert all(len(dict(record.headers)["ce_signature"]) == 64 for record in records)
    shop.deliver(*records)
    assert sorted(shop.orders.effects("cancelled")) == ["a", "b"]
    assert shop.parked() == []


def test_forged_rollback_is_parked_and_the_partition_continues(shop: Shop) -> None:
    [event] = shop.place("a")
    [genuine] = shop.refusals()
    unsigned = cloudevents.encode(forged(event), "")
    signed = signing.encode(forged(event), "", [SecretStr(OTHER_SECRET)])
    shop.deliver(unsigned, signed)
    assert shop.orders.effects("cancelled") == []
    assert shop.orders.inbox() == {}
    [(missing, body), (wrong, _)] = shop.parked()
    assert missing == "ce_signature: the header is missing from a rollback"
    assert "is not that of this record" in wrong
    assert body == unsigned.value
    shop.deliver(genuine)
    assert shop.orders.effects("cancelled") == ["a"]


OTHER_ID = b"01990000-0000-7000-8000-000000000009"


CHANGED: tuple[dict[str, bytes | None], ...] = (
    {"ce_id": OTHER_ID},
    {"ce_source": b"stock2"},
    {"ce_type": b"orders.changed"},
    {"ce_operation": b"DELETE"},
    {"ce_time": b"2026-03-01T10:30:00Z"},
    {"ce_bizkey": b"order b"},
    {"ce_bizkey": None},
    {"ce_causationsource": b"stock"},
    {"ce_causationsource": None},
    {"ce_causationid": OTHER_ID},
    {"ce_causationid": None},
    {"ce_signature": b"0" * 64},
    {"ce_signature": None},
)


def test_rollback_with_any_changed_header_is_parked(shop: Shop) -> None:
    shop.place("a")
    [genuine] = shop.refusals()
    shop.deliver(*(with_headers(genuine, **headers) for headers in CHANGED))
    assert shop.orders.effects("cancelled") == []
    assert shop.orders.inbox() == {}
    reasons = [reason for reason, _ in shop.parked()]
    assert len(reasons) == len(CHANGED)
    assert all(reason.startswith("ce_signature: ") for reason in reasons)


def test_rollback_redirected_to_another_event_is_parked(shop: Shop) -> None:
    _, other = shop.place("a", "b")
    genuine = next(record for record in shop.refusals() if record.key == b"a")
    turned = with_headers(
        genuine,
        ce_causationid=str(other.id).encode(),
        ce_partitionkey=b"b",
        ce_id=str(new_event_id()).encode(),
    )._replace(
        key=b"b",
    )
    shop.deliver(turned, genuine._replace(value=b'{"reason":"another"}'))
    assert shop.orders.effects("cancelled") == []
    assert [reason.split(":")[0] for reason, _ in shop.parked()] == ["ce_signature"] * 2


def test_a_rollback_that_is_replayed_compensates_nothing_more(shop: Shop) -> None:
    shop.place("a")
    [genuine] = shop.refusals()
    shop.deliver(genuine, genuine)
    shop.deliver(genuine)
    assert shop.orders.effects("cancelled") == ["a"]
    assert shop.orders.inbox() == {"PROCESSED": 1}
    assert shop.parked() == []


def test_second_genuine_rollback_of_an_event_compensates_nothing(shop: Shop) -> None:
    [event] = shop.place("a")
    [genuine] = shop.refusals()
    again = signing.encode(forged(event), "", [SecretStr(SECRET)])
    shop.deliver(genuine, again)
    assert shop.orders.effects("cancelled") == ["a"]
    assert shop.orders.inbox() == {"PROCESSED": 2}


def test_rollback_of_an_unauthorised_service_is_parked(shop: Shop) -> None:
    [event] = shop.place("a")
    [genuine] = shop.refusals()
    shop.deliver(signing.encode(forged(event, source="mailer"), "", [SecretStr(SECRET)]))
    assert shop.orders.effects("cancelled") == []
    [(reason, _)] = shop.parked()
    assert "is not authorised to send a ROLLBACK of 'orders.placed', only stock" in reason
    assert "mailer" not in reason
    shop.deliver(genuine)
    assert shop.orders.effects("cancelled") == ["a"]


def test_a_key_is_changed_without_losing_a_rollback(make_service: Make, wire: Wire) -> None:
    new = "a key that replaces the one before"
    shop = Shop(make_service, wire, orders_key=f"{new},{SECRET}", stock_key=SECRET)
    shop.place("a")
    shop.deliver(*shop.refusals())
    assert shop.orders.effects("cancelled") == ["a"]


def test_neither_key_nor_signature_is_in_a_table(shop: Shop) -> None:
    shop.place("a")
    [genuine] = shop.refusals()
    shop.deliver(genuine)
    signed = dict(genuine.headers)["ce_signature"].decode()
    for service in (shop.orders, shop.stock):
        for table in ("shield_outbox", "shield_inbox", "shield_parked"):
            for (row,) in service.rows(f"SELECT {table}::text FROM {table}"):
                assert SECRET not in row
                assert signed not in row
