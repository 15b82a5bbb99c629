"""A consumer whose database encoding lacks characters that other services write."""

from __future__ import annotations

from collections.abc import Callable

from shieldtx import Event
from tests.support.encodings import of_another_encoding
from tests.support.service import Service, drain, effect, make_topics

NAMES = ("Müller", "Łódź", "Søren", "plain")


def test_unencodable_character_parks_only_its_record(
    make_service: Callable[..., Service],
):
    orders, stock = make_service("orders"), make_service("stock")
    orders.app.declare("orders.placed")
    make_topics(orders, stock)
    for name in NAMES:
        with orders.transaction() as session:
            orders.app.outbox.add(session, Event(type="orders.placed", key=name, payload=name))
    drain(orders.relay())
    with of_another_encoding(stock) as latin:
        latin.app.consumer("stock").handles("orders.placed")(effect("reserved"))
        drain(latin.app.build_consumer("stock"))

        assert sorted(latin.effects()) == ["Müller", "Søren", "plain"]
        parked = latin.rows("SELECT record_key, reason FROM shield_parked")
        lacks = "the encoding of the database, latin-1, does not have all letters"
        assert parked == [("Łódź".encode(), f"the inbox refuses it: {lacks}")]
