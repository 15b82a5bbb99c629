"""Methods as local transactions: their declarations, and the arguments that become the payload."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
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


def test_named_argument_is_sent_with_its_annotation_as_type(shield: ShieldTx, shop: Shop) -> None:
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


def test_payload_may_be_made_of_all_arguments(shield: ShieldTx, shop: Shop) -> None:
    @shield.transactional(
        "orders.placed", payload=lambda a: {"sum": a["x"] + a["y"]}, key=lambda p: f"k{p['sum']}"
    )
    def place(x: int, y: int = 2) -> None:
        """Do nothing else."""

    place(1)
    [row] = rows(shop)
    assert (json.loads(row.payload), row.key) == ({"sum": 3}, "k3")


@pytest.mark.parametrize("outcome", list(LocalOutcome))
def test_text_of_an_outcome_is_no_outcome(
    shield: ShieldTx, shop: Shop, outcome: LocalOutcome
) -> None:
    @shield.transactional("orders.placed", payload="order")
    def place(order: Order) -> str:
        return outcome.value

    with pytest.raises(ConfigurationError, match=f"return LocalOutcome.{outcome.value}"):
        place(Order(id=1))
    # A check-back decides.
    assert [row.status for row in rows(shop)] == ["HALF"]


class Payment(StrEnum):
    UNKNOWN = "UNKNOWN"


def done() -> Future[int]:
    future: Future[int] = Future()
    future.set_result(1)
    return future


@pytest.mark.parametrize(
    "result", [Payment.UNKNOWN, (1, partial(print)), {"mail": done()}, {"pairs": zip(())}]
)
def test_any_other_result_is_the_callers(shield: ShieldTx, shop: Shop, result: object) -> None:
    @shield.transactional("orders.placed", payload="order")
    def place(order: Order) -> object:
        return result

    assert place(Order(id=1)) is result
    assert [row.status for row in rows(shop)] == ["INIT"]


def test_callable_object_is_a_local_transaction(shield: ShieldTx, shop: Shop) -> None:
    class Place:
        async def __call__(self, order: Order) -> int:
            return order.id

    assert asyncio.run(shield.transactional("orders.placed", payload="order")(Place())(Order(id=1)))
    assert [row.status for row in rows(shop)] == ["INIT"]


def test_missing_key_is_refused_before_the_method_runs(shield: ShieldTx, shop: Shop) -> None:
    @shield.transactional("orders.placed", payload="order", key="nothing")
    def place(order: Order) -> None:
        pytest.fail("the local transaction was run")

    with pytest.raises(EventRefused, match="nothing"):
        place(Order(id=1))
    assert rows(shop) == []


def test_second_declaration_of_a_type_is_refused(shield: ShieldTx) -> None:
    @shield.transactional("orders.placed", payload="order")
    def place(order: Order) -> None:
        """Do nothing."""

    @shield.transactional("orders.placed", payload="order")
    def place_again(order: Order) -> None:
        """Do nothing."""

    with pytest.raises(ConfigurationError, match="declared already"):

        @shield.transactional("orders.placed", payload="order", topic="other")
        def place_elsewhere(order: Order) -> None:
            """Do nothing."""


def test_unresolvable_annotation_asks_for_the_payload_type(
    shield: ShieldTx,
) -> None:
    with pytest.raises(ConfigurationError, match=r"annotation of 'order' .*place.*payload_type="):

        @shield.transactional("orders.placed", payload="order")
        def place(order: Unheard) -> None:  # type: ignore[name-defined]  # noqa: F821
            """Do nothing."""


def test_blocks_work_on_sqlite_too(shield: ShieldTx, shop: Shop) -> None:
    shield.declare("orders.placed")
    shield.barrier("orders.placed")
    with shield.half("orders.placed") as tx, shop.session() as session, session.begin():
        tx.guard(session)
    with shield.half("orders.placed") as other:
        other.set_outcome(LocalOutcome.ROLLBACK)
    assert {row.event_id: row.status for row in rows(shop)} == {
        tx.id: "INIT",
        other.id: "DISCARDED",
    }
