"""The decorator: a method's result becomes an event of the transaction of the method."""

from __future__ import annotations

import asyncio
import inspect
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import Connection, insert
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from shieldtx import EventRefused, Operation, RetryPolicy
from shieldtx.errors import ConfigurationError, PayloadRefused, TransactionRefused
from shieldtx.outbox.published_results import payload_type_of
from tests.support.write_side_shop import Order

if TYPE_CHECKING:
    from nowhere import OnlyForTypeCheckers

Positive = Annotated[int, Field(gt=0)]


class Size(StrEnum):
    LARGE = "large"


@dataclass(frozen=True, kw_only=True)
class Placed:
    id: int
    household: UUID | None = None
    size: Size = Size.LARGE


class Paid(BaseModel):
    id: int
    reference: str = ""


def only(shop) -> dict[str, Any]:
    (row,) = shop.rows()
    return row


def test_result_becomes_the_event_and_is_returned_too(shop, shield):
    class Orders:
        @shield.publishes("order.placed", key="household", biz_key="id")
        def place(self, session: Session, number: int) -> Placed:
            """Place an order."""
            session.add(Order(id=number))
            return Placed(id=number, household=UUID(int=7))

    with shop.session() as session, session.begin():
        assert Orders().place(session, 1) == Placed(id=1, household=UUID(int=7))
    row = only(shop)
    assert (row["event_type"], row["topic"], row["source"]) == ("order.placed",) * 2 + ("shop",)
    assert (row["key"], row["biz_key"]) == (str(UUID(int=7)), "1")
    assert row["payload"] == f'{{"id":1,"household":"{UUID(int=7)}","size":"large"}}'
    assert shop.orders() == [1]
    assert (Orders.place.__name__, Orders.place.__doc__) == ("place", "Place an order.")


def test_partial_and_callable_object_publish(shop, shield):
    def place(note: str, session: Session, number: int) -> Placed:
        return Placed(id=number)

    class Place:
        def __call__(self, session: Session, number: int) -> Placed:
            session.add(Order(id=number))
            return Placed(id=number)

    with shop.session() as session, session.begin():
        shield.publishes("a", payload=Placed)(partial(place, "note"))(session, 1)
        shield.publishes("b", payload=Placed)(Place())(session, 2)
    assert [row["event_type"] for row in shop.rows()] == ["a", "b"]
    with pytest.raises(TransactionRefused, match="place was called without a Session"):
        shield.publishes("c", payload=Placed)(partial(place, "note"))(1, 2)


def test_annotation_inside_of_a_partial_is_the_shape(shop, shield):
    def place(note: str, session: Session, number: int) -> list[Placed] | None:
        return [Placed(id=number), Placed(id=number + 1)] if number else None

    placing = shield.publishes("a")(partial(place, "note"))
    with shop.session() as session, session.begin():
        assert placing(session, 0) is None
        placing(session, 1)
    assert [json.loads(row["payload"])["id"] for row in shop.rows()] == [1, 2]


def test_coroutine_method_publishes_when_awaited(shop, shield):
    @shield.publishes("order.placed", key="id")
    async def place(session: Session, number: int) -> Placed:
        await asyncio.sleep(0)
        session.add(Order(id=number))
        return Placed(id=number)

    assert inspect.iscoroutinefunction(place)
    with shop.session() as session:
        coroutine = place(session, 1)
        assert not session.new
        assert asyncio.run(coroutine) == Placed(id=1)
        session.commit()
    assert shop.events() == ["1"]


def test_topic_operation_headers_and_delay_are_as_declared(shop, shield):
    @shield.publishes(
        "order.placed",
        topic="orders",
        operation=Operation.DELETE,
        headers={"tenant": "north"},
        delay=timedelta(hours=1),
        retry=RetryPolicy(max_attempts=3),
    )
    def remove(session: Session) -> None:
        return None

    with shop.session() as session, session.begin():
        remove(session)
    row = only(shop)
    assert (row["topic"], row["operation"], row["payload"]) == ("orders", "DELETE", "null")
    assert row["headers"] == '{"tenant": "north"}'
    assert row["due_at"] - row["created_at"] > timedelta(minutes=59)
    assert shield.event_types.get("order.placed").retry.max_attempts == 3


@pytest.mark.parametrize(
    ("part", "payload", "key"),
    [
        ("id", Placed(id=7), "7"),
        ("id", Paid(id=7), "7"),
        ("id", {"id": 7}, "7"),
        ("size", Placed(id=7), "large"),
        (lambda order: f"n-{order.id}", Placed(id=7), "n-7"),
        (lambda payload: payload["a"][0], {"a": ["deep"]}, "deep"),
        (None, Placed(id=7), None),
    ],
)
def test_key_is_a_payload_field_by_name_or_a_function(shop, shield, part, payload, key):
    @shield.publishes("order.placed", key=part)
    def place(session: Session):
        return payload

    with shop.session() as session, session.begin():
        place(session)
    assert shop.events() == [key]


@pytest.mark.parametrize(
    ("part", "payload"),
    [
        ("household", Placed(id=7)),
        ("customer", Placed(id=7)),
        ("customer", Paid(id=7)),
        ("customer", {"id": 7}),
        ("customer", None),
        (lambda payload: None, {"id": 7}),
    ],
)
@pytest.mark.parametrize("name", ["key", "biz_key"])
def test_payload_without_its_key_is_refused_by_name(shop, shield, name, part, payload):
    @shield.publishes("order.placed", **{name: part})
    def place(session: Session) -> Any:
        return payload

    with shop.session() as session, session.begin(), pytest.raises(EventRefused) as caught:
        place(session)
    assert caught.value.field == name
    assert shop.events() == []


@pytest.mark.parametrize("how", ["first", "by name", "in the middle"])
@pytest.mark.parametrize("kind", ["session", "connection", "scoped"])
def test_transaction_is_found_at_any_place_of_the_arguments(shop, shield, how, kind):
    @shield.publishes("order.placed", key="id")
    def place(a: Any, b: Any = None, c: Any = None) -> Placed:
        return Placed(id=1)

    def calling(transaction: Any) -> None:
        arguments = {"first": (transaction,), "by name": (1,), "in the middle": (1, transaction, 3)}
        place(*arguments[how], **({"c": transaction} if how == "by name" else {}))
        transaction.commit()

    if kind == "session":
        with shop.session() as session:
            calling(session)
    elif kind == "connection":
        with shop.engine.connect() as connection:
            calling(connection)
    else:
        scoped = scoped_session(sessionmaker(shop.engine))
        calling(scoped)
        scoped.remove()
    assert shop.events() == ["1"]


def test_call_without_a_transaction_is_refused_before_it_runs(shop, shield):
    ran = []

    class Orders:
        @shield.publishes("order.placed")
        def place(self, session: Any) -> int:
            ran.append(session)
            return 1

    with pytest.raises(TransactionRefused, match=r"Orders\.place was called without a Session"):
        Orders().place(shop.engine)
    assert ran == []


def test_method_that_raises_publishes_nothing(shop, shield):
    @shield.publishes("order.placed")
    def place(session: Session) -> int:
        session.add(Order(id=1))
        session.flush()
        raise LookupError("no such customer")

    with shop.session() as session:
        with pytest.raises(LookupError, match="no such customer"):
            place(session)
        session.commit()
    assert (shop.orders(), shop.events()) == ([1], [])


@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_method_that_ends_the_transaction_is_refused(shop, shield, ending, begun, kind):
    @shield.publishes("order.placed")
    def place(transaction: Session | Connection) -> int:
        transaction.execute(insert(Order).values(id=1))
        getattr(transaction, ending)()
        return 1

    with shop.session() if kind == "session" else shop.engine.connect() as transaction:
        if begun:
            transaction.begin()
        with pytest.raises(TransactionRefused, match="place ended the transaction"):
            place(transaction)
    assert shop.orders() == ([1] if ending == "commit" else [])
    assert shop.events() == []


def test_method_may_use_savepoints_of_its_own(shop, shield):
    @shield.publishes("order.placed", key="id")
    def place(session: Session) -> Placed:
        with session.begin_nested():
            session.add(Order(id=1))
        session.begin_nested().rollback()
        return Placed(id=1)

    with shop.session() as session, session.begin():
        place(session)
    assert (shop.orders(), shop.events()) == ([1], ["1"])


def test_method_is_called_with_its_own_arguments_unchanged(shop, shield):
    @shield.publishes("order.placed")
    def place(session: Session, /, *numbers: int, **named: int) -> list[int]:
        return [*numbers, *named.values()]

    with shop.session() as session, session.begin():
        assert place(session, 1, 2, three=3) == [1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class Reminder:
    id: int
    due: datetime | None = None
    wait: timedelta | None = None
    rung: int | None = None


@pytest.mark.parametrize(
    ("declared", "payload", "wait"),
    [
        ({"level": 17}, Reminder(id=1), timedelta(hours=1)),
        ({"delay": "wait"}, Reminder(id=1, wait=timedelta(days=31)), timedelta(days=31)),
        ({"level": "rung"}, Reminder(id=1, rung=18), timedelta(hours=2)),
        ({"level": lambda r: r.rung + 1}, Reminder(id=1, rung=16), timedelta(hours=1)),
        ({"delay": lambda r: r.wait * 2}, Reminder(id=1, wait=timedelta(3)), timedelta(6)),
    ],
)
def test_due_time_is_a_value_a_payload_field_or_a_function(shop, shield, declared, payload, wait):
    @shield.publishes("order.placed", **declared)
    def remind(session: Session) -> Reminder:
        return payload

    with shop.session() as session, session.begin():
        remind(session)
    row = only(shop)
    assert abs(row["due_at"] - row["created_at"] - wait) < timedelta(seconds=1)


def test_event_is_due_at_a_time_in_its_payload(shop, shield):
    at = datetime(2199, 2, 28, 23, 30, tzinfo=UTC)

    @shield.publishes("order.placed", at="due")
    def remind(session: Session) -> Reminder:
        return Reminder(id=1, due=at)

    with shop.session() as session, session.begin():
        remind(session)
    assert only(shop)["due_at"] == at


@pytest.mark.parametrize(
    ("declared", "field"), [({"at": "due"}, "at"), ({"delay": "wait"}, "delay")]
)
def test_due_time_missing_in_the_payload_does_not_mean_now(shop, shield, declared, field):
    @shield.publishes("order.placed", **declared)
    def remind(session: Session) -> Reminder:
        return Reminder(id=1)

    with shop.session() as session, pytest.raises(EventRefused, match="has no value") as caught:
        remind(session)
    assert caught.value.field == field
    assert shop.rows() == []


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"delay": timedelta(1), "level": 3}, "give one of delay, level"),
        ({"delay": "wait", "at": "due"}, "give one of delay, at"),
        ({"level": 19}, "19 is not a level"),
        ({"delay": timedelta(-1)}, "in the past"),
        ({"at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001  under test
    ],
)
def test_declaration_that_fits_no_payload_is_refused_at_once(shield, declared, problem):
    with pytest.raises(ConfigurationError, match=f"'order.placed': .*{problem}"):
        shield.publishes("order.placed", **declared)(lambda session: None)


def test_return_annotation_is_the_payload_type(shop, shield):
    @shield.publishes("order.placed")
    def place(session: Session) -> Placed:
        return {"id": "not a number"}

    with shop.session() as session, pytest.raises(PayloadRefused) as caught:
        place(session)
    assert caught.value.field == "payload.id"


def test_annotations_of_other_arguments_need_not_exist():
    def place(session: OnlyForTypeCheckers, *, unknown: Unheard = None) -> Placed:  # noqa: F821
        return Placed(id=1)

    assert payload_type_of(place) is Placed


def test_payload_type_is_found_in_decorated_functions():
    """It is found in methods and with metadata, too."""

    class Orders:
        def count(self) -> Positive:
            return 1

        def place(self):
            return 1

    assert payload_type_of(Orders.count) == Positive
    assert payload_type_of(Orders.place) is None
    assert payload_type_of(partial(Orders.place, None)) is None


def test_unresolvable_return_annotation_asks_for_payload_type(shield):
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
def test_decorator_cannot_declare_a_declared_type_again(shield, again):
    shield.declare("order.changed", payload=Placed, topic="orders")
    with pytest.raises(ConfigurationError, match=r"'order\.changed' is declared already"):
        shield.publishes("order.changed", **again)(lambda session: None)
