"""Methods as local transactions: what they declare, and what of their arguments is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from shieldtx import EventRefused, LocalOutcome, ShieldTx
from shieldtx.errors import ConfigurationError, PayloadRefused
from tests.support.write_side_shop import Shop


@dataclass(frozen=True, kw_only=True)
class Order:
    id: int
    customer: str = "ann"


def rows(shop: Shop) -> list[Any]:
    with shop.engine.connect() as connection:
        return list(connection.execute(select(shop.tables.outbox)))


def test_the_named_argument_is_sent_and_its_annotation_is_the_payloads_type(
    shield: ShieldTx, shop: Shop
) -> None:
    @shield.transactional("orders.placed", payload="order", key="customer", biz_key="id")
    def place(note: str, order: Order) -> str:
        return note

    assert place("as before", Order(id=1)) == "as before"
    [row] = rows(shop)
    assert (row.status, row.key, row.biz_key) == ("INIT", "ann", "1")
    assert json.loads(row.payload) == {"id": 1, "customer": "ann"}
    with pytest.raises(PayloadRefused):
        place("wrong", {"id": "no number", "customer": "ann"})  # type: ignore[arg-type]
    assert len(rows(shop)) == 1


def test_the_payload_may_be_made_of_all_arguments(shield: ShieldTx, shop: Shop) -> None:
    @shield.transactional(
        "orders.placed", payload=lambda a: {"sum": a["x"] + a["y"]}, key=lambda p: f"k{p['sum']}"
    )
    def place(x: int, y: int = 2) -> None:
        """Nothing else."""

    place(1)
    [row] = rows(shop)
    assert (json.loads(row.payload), row.key) == ({"sum": 3}, "k3")


def test_a_key_that_is_not_there_is_refused_before_the_method_runs(
    shield: ShieldTx, shop: Shop
) -> None:
    @shield.transactional("orders.placed", payload="order", key="nothing")
    def place(order: Order) -> None:
        pytest.fail("the local transaction was run")

    with pytest.raises(EventRefused, match="nothing"):
        place(Order(id=1))
    assert rows(shop) == []


def test_a_type_is_declared_once(shield: ShieldTx) -> None:
    @shield.transactional("orders.placed", payload="order")
    def place(order: Order) -> None:
        """Nothing."""

    @shield.transactional("orders.placed", payload="order")
    def place_again(order: Order) -> None:
        """Nothing."""

    with pytest.raises(ConfigurationError, match="declared already"):

        @shield.transactional("orders.placed", payload="order", topic="other")
        def place_elsewhere(order: Order) -> None:
            """Nothing."""


def test_an_annotation_that_cannot_be_resolved_asks_for_the_payloads_type(
    shield: ShieldTx,
) -> None:
    with pytest.raises(ConfigurationError, match=r"annotation of 'order' .*place.*payload_type="):

        @shield.transactional("orders.placed", payload="order")
        def place(order: Unheard) -> None:  # type: ignore[name-defined]  # noqa: F821
            """Nothing."""


def test_blocks_work_on_sqlite_too(shield: ShieldTx, shop: Shop) -> None:
    shield.declare("orders.placed")
    shield.barrier("orders.placed")
    with shield.half("orders.placed") as tx, shop.session() as session, session.begin():
        tx.guard(session)
    with shield.half("orders.placed") as other:
        other.say(LocalOutcome.ROLLBACK)
    assert {row.event_id: row.status for row in rows(shop)} == {
        tx.id: "INIT",
        other.id: "DISCARDED",
    }
