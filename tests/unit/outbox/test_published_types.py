"""The type of a published payload: the method's return annotation, or a declaration before it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import Field
from sqlalchemy.orm import Session

from shieldtx import Operation, RetryPolicy
from shieldtx.errors import ConfigurationError, PayloadRefused
from shieldtx.outbox.publish_decorator import payload_type_of

if TYPE_CHECKING:
    from nowhere import OnlyForTypeCheckers

Positive = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class Placed:
    id: int


def test_the_return_annotation_is_the_payloads_type(shop, shield):
    @shield.publishes("order.placed")
    def place(session: Session) -> Placed:
        return {"id": "not a number"}

    with shop.session() as session, pytest.raises(PayloadRefused) as caught:
        place(session)
    assert caught.value.field == "payload.id"


def test_annotations_of_other_arguments_need_not_exist_at_run_time():
    def place(session: OnlyForTypeCheckers, *, unknown: Unheard = None) -> Placed:  # noqa: F821
        return Placed(id=1)

    assert payload_type_of(place) is Placed


def test_a_payload_type_is_found_behind_decorators_methods_and_metadata():
    class Orders:
        def count(self) -> Positive:
            return 1

        def place(self):
            return 1

    assert payload_type_of(Orders.count) == Positive
    assert payload_type_of(Orders.place) is None
    assert payload_type_of(partial(Orders.place, None)) is None


def test_a_return_annotation_that_cannot_be_resolved_asks_for_the_payloads_type(shield):
    def place(session: Session) -> Unheard:  # noqa: F821
        return 1

    with pytest.raises(ConfigurationError, match=r"return annotation of .*place.* payload="):
        shield.publishes("order.placed")(place)
    shield.publishes("order.placed", payload=int)(place)


def test_two_methods_may_publish_one_declared_type(shop, shield):
    shield.declare("order.changed", payload=Placed, topic="orders")

    @shield.publishes("order.changed", key="id", operation=Operation.UPDATE)
    def change(session: Session) -> Placed:
        return Placed(id=1)

    @shield.publishes("order.changed", key="id", operation=Operation.DELETE)
    def remove(session: Session) -> Placed:
        return Placed(id=1)

    with shop.session() as session, session.begin():
        change(session)
        remove(session)
    assert [(r["topic"], r["operation"]) for r in shop.rows()] == [
        ("orders", "UPDATE"),
        ("orders", "DELETE"),
    ]


@pytest.mark.parametrize(
    "again", [{"topic": "other"}, {"payload": int}, {"retry": RetryPolicy(max_attempts=1)}]
)
def test_a_declared_type_is_not_declared_otherwise_by_a_decorator(shield, again):
    shield.declare("order.changed", payload=Placed, topic="orders")
    with pytest.raises(ConfigurationError, match=r"'order\.changed' is declared already"):
        shield.publishes("order.changed", **again)(lambda session: None)
