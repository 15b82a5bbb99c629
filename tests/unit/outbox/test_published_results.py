"""What a decorated method publishes: nothing, one event, or several; and the ids of its events."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Barrier
from typing import Annotated, Any

import pytest
from pydantic import Field
from sqlalchemy import text
from sqlalchemy.orm import Session
from typing_extensions import TypeAliasType

from shieldtx import ConfigurationError, Event, EventRefused, PayloadRefused
from shieldtx.outbox.published_results import shape_of
from tests.support.write_side_shop import Order


@dataclass(frozen=True)
class Line:
    id: int
    wait: timedelta = timedelta(0)


def test_none_publishes_no_event_where_it_is_annotated(shop, shield):
    @shield.publishes("order.placed", key="id")
    def place(session: Session, number: int) -> Line | None:
        session.add(Order(id=number))
        return Line(number) if number != 2 else None

    with shop.session() as session, session.begin():
        assert [place(session, n) for n in (1, 2, 3)] == [Line(1), None, Line(3)]
    assert shop.events() == ["1", "3"]
    assert shop.orders() == [1, 2, 3]


async def _awaited(session: Session, lines: list[Line]) -> list[Line]:
    return lines


def _plain(session: Session, lines: list[Line]) -> list[Line]:
    return lines


def test_list_publishes_an_event_of_each_item_in_order(shop, shield):
    place = shield.publishes("order.placed", key="id", delay="wait")(_plain)
    lines = [Line(3), Line(1, timedelta(hours=1)), Line(2)]
    with shop.session() as session, session.begin():
        assert place(session, lines) is lines
        assert place(session, []) == []
    rows = shop.rows()
    assert [row["key"] for row in rows] == ["3", "1", "2"]
    hours = [(row["due_at"] - row["created_at"]) / timedelta(hours=1) for row in rows]
    assert [round(each) for each in hours] == [0, 1, 0]


def test_coroutine_method_publishes_a_list(shop, shield):
    place = shield.publishes("order.placed", key="id")(_awaited)
    with shop.session() as session, session.begin():
        coroutine = place(session, [Line(1), Line(2)])
        with pytest.raises(StopIteration):
            coroutine.send(None)
    assert shop.events() == ["1", "2"]


def test_one_unfit_item_leaves_out_all_events(shop, shield):
    place = shield.publishes("order.placed")(_plain)
    with shop.session() as session, session.begin():
        session.add(Order(id=1))
        with pytest.raises(PayloadRefused, match="id"):
            place(session, [Line(1), Line("no number")])
    assert (shop.orders(), shop.events()) == ([1], [])


def test_list_without_a_value_for_the_key_leaves_out_all_events(shop, shield):
    place = shield.publishes("order.placed", key=lambda line: line.id or None)(_plain)
    with shop.session() as session, session.begin():
        session.add(Order(id=1))
        with pytest.raises(EventRefused, match="key"):
            place(session, [Line(1), Line(0)])
    assert shop.events() == []


@pytest.mark.parametrize("result", [None, Line(1), (Line(1),), {"id": 1}])
def test_result_that_is_not_the_annotated_list_is_refused(shop, shield, result):
    place = shield.publishes("order.placed")(_plain)
    with shop.session() as session, pytest.raises(PayloadRefused, match=type(result).__name__):
        place(session, result)


def test_optional_list_takes_none_and_a_list(shop, shield):
    @shield.publishes("order.placed", key="id")
    def place(session: Session, lines: list[Line] | None) -> list[Line] | None:
        return lines

    with shop.session() as session, session.begin():
        place(session, None)
        place(session, [Line(1)])
    assert shop.events() == ["1"]


FORGOTTEN_RETURN = r"returned None, .* no return annotation"


def test_forgotten_return_is_refused(shop, shield):
    @shield.publishes("order.placed")
    def place(session):
        session.execute(text("SELECT 1"))

    no_return = pytest.raises(PayloadRefused, match=FORGOTTEN_RETURN)
    with shop.session() as session, session.begin(), no_return:
        place(session)
    assert shop.rows() == []


def test_forgotten_return_of_a_coroutine_is_refused(shop, shield):
    shield.declare("order.placed")

    @shield.publishes("order.placed")
    async def place(session):
        await asyncio.sleep(0)

    no_return = pytest.raises(PayloadRefused, match=FORGOTTEN_RETURN)
    with shop.session() as session, session.begin(), no_return:
        asyncio.run(place(session))
    assert shop.rows() == []


def test_declared_type_describes_a_method_without_annotation(shop, shield):
    @shield.publishes("order.placed", payload=int | None)
    def place(session):
        return None

    with shop.session() as session, session.begin():
        place(session)
    assert [row["payload"] for row in shop.rows()] == ["null"]


def _returning(annotation: Any) -> Callable[[Session, Any], Any]:
    def returned(session: Session, result: Any) -> Any:
        return result

    returned.__annotations__["return"] = annotation
    return returned


Several = Annotated[list[Line], "all lines"]


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[Line | None, "if there is any"],
        Annotated[Annotated[Line, "one"] | None, "if there is any"],
        Annotated[Line | None, "if there is any"] | None,
        TypeAliasType("Maybe", Annotated[Line | None, "if there is any"]),
    ],
)
def test_annotated_optional_publishes_no_event_for_none(shop, shield, annotation):
    place = shield.publishes("order.placed", key="id")(_returning(annotation))
    with shop.session() as session, session.begin():
        place(session, None)
        place(session, Line(1))
    assert shop.events() == ["1"]


def test_metadata_of_an_optional_applies_to_the_payload(shop, shield):
    @shield.publishes("order.placed")
    def place(session: Session, number: int | None) -> Annotated[int | None, Field(gt=0)]:
        return number

    with shop.session() as session, session.begin():
        place(session, None)
        with pytest.raises(PayloadRefused, match="greater than 0"):
            place(session, 0)
        place(session, 1)
    assert [row["payload"] for row in shop.rows()] == ["1"]


@pytest.mark.parametrize("annotation", [Several, Several | None, Annotated[Several | None, "all"]])
def test_annotated_list_publishes_an_event_of_each_item(shop, shield, annotation):
    place = shield.publishes("order.placed", key="id")(_returning(annotation))
    with shop.session() as session, session.begin():
        place(session, [])
        place(session, [Line(1), Line(2)])
    assert shop.events() == ["1", "2"]


def test_annotated_list_that_is_declared_is_one_event(shop, shield):
    @shield.publishes("order.placed", payload=list[Line])
    def place(session: Session) -> Several:
        return [Line(1), Line(2)]

    with shop.session() as session, session.begin():
        place(session)
    assert len(shop.rows()) == 1


@pytest.mark.parametrize(
    "annotation", ["Unheard | None", "Line.unheard | None", "Line |", "Line | 5"]
)
@pytest.mark.parametrize("result", [None, [], [Line(1)]])
def test_none_or_list_of_an_unknown_annotation_is_refused(shop, shield, annotation, result):
    shield.declare("order.placed")
    place = shield.publishes("order.placed")(_returning(annotation))
    with shop.session() as session, session.begin():
        with pytest.raises(PayloadRefused, match=r"return annotation of .*returned .* payload="):
            place(session, result)
        place(session, {"id": 1})
    assert len(shop.rows()) == 1


def test_unknown_annotation_of_a_declared_payload_is_one_event(shop, shield):
    shield.declare("order.placed", payload=list[Line] | None)

    @shield.publishes("order.placed")
    def place(session: Session, result: Any) -> Unheard | None:  # noqa: F821
        return result

    with shop.session() as session, session.begin():
        place(session, None)
        place(session, [Line(1)])
    assert [row["payload"].count('"id"') for row in shop.rows()] == [0, 1]


def test_none_without_an_annotation_is_no_silent_absence(shop, shield):
    @shield.publishes("order.placed", key="id")
    def place(session: Session) -> Line:
        return None

    with shop.session() as session, pytest.raises(EventRefused, match=r"`P \| None` stands"):
        place(session)


def test_list_that_is_declared_as_the_payload_is_one_event(shop, shield):
    shield.publishes("order.placed", payload=list[Line])(_plain)
    shield.declare("order.paid", payload=list[Line] | None)

    @shield.publishes("order.paid")
    def pay(session: Session, lines: Any) -> list[Line] | None:
        return lines

    place = shield.publishes("order.changed", payload=list[Line])(_plain)
    with shop.session() as session, session.begin():
        place(session, [Line(1), Line(2)])
        pay(session, None)
        pay(session, [])
    assert [row["payload"].count('"id"') for row in shop.rows()] == [2, 0, 0]


def test_list_of_a_type_that_is_declared_is_several_events(shop, shield):
    shield.declare("order.placed", payload=Line)
    place = shield.publishes("order.placed", key="id")(_plain)
    with shop.session() as session, session.begin():
        place(session, [Line(1), Line(2)])
    assert shop.events() == ["1", "2"]


def test_list_whose_items_may_be_none_is_refused_when_declared(shield):
    def place(session: Session) -> list[Line | None]:
        return []

    with pytest.raises(ConfigurationError, match="None among its payloads"):
        shield.publishes("order.placed")(place)


def test_ids_are_those_of_the_events_added_in_the_block(shop, shield):
    shield.declare("order.paid")
    place = shield.publishes("order.placed", key="id")(_plain)
    with shop.session() as session, session.begin(), shop.session() as other, other.begin():
        place(session, [Line(1)])
        with shield.outbox.added_ids(session) as ids:
            place(session, [Line(2), Line(3)])
            with shield.outbox.added_ids(session) as inner:
                paid = shield.outbox.add(session, Event(type="order.paid", key="4"))
            place(session, [])
        place(session, [Line(5)])
        with shield.outbox.added_ids(other) as others:
            place(session, [Line(6)])
    written = {row["key"]: row["event_id"] for row in shop.rows()}
    assert ids == [written["2"], written["3"], written["4"]]
    assert inner == [paid]
    assert others == []


def test_ids_of_a_call_that_fails_are_not_those_of_the_next(shop, shield):
    place = shield.publishes("order.placed", key="id")(_plain)
    with shop.session() as session, session.begin():
        with suppress(PayloadRefused), shield.outbox.added_ids(session) as failed:
            place(session, [Line(1), Line("no number")])
        with shield.outbox.added_ids(session) as ids:
            place(session, [Line(2)])
    assert (failed, len(ids)) == ([], 1)


def test_threads_get_the_ids_of_their_own_sessions(shop, shield):
    place = shield.publishes("order.placed", key="id")(_plain)
    together = Barrier(2)

    def serve(number: int) -> tuple[int, list[Any]]:
        with shop.session() as session, shield.outbox.added_ids(session) as ids:
            together.wait(20)
            place(session, [Line(number)])
            together.wait(20)
            session.rollback()
        return number, ids

    with ThreadPoolExecutor(2) as threads:
        results = dict(threads.map(serve, (1, 2)))
    assert [len(ids) for ids in results.values()] == [1, 1]
    assert results[1] != results[2]


def test_connection_has_ids_too(shop, shield):
    shield.declare("order.paid")
    with shop.engine.begin() as connection, shield.outbox.added_ids(connection) as ids:
        added = shield.outbox.add(connection, Event(type="order.paid"))
    assert ids == [added]


def test_list_without_a_type_is_one_payload() -> None:
    # What older code writes.
    shape = shape_of(typing.List)  # noqa: UP006
    assert (shape.is_list, shape.is_optional) == (False, False)
