"""The declarations of a consumer group, with handlers declared before or after event types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from pydantic import BaseModel, ConfigDict

from shieldtx import RetryPolicy, TxKind
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.payloads import payload_type, require_complete
from shieldtx.errors import ConfigurationError, HandlerConflict


@dataclass(frozen=True)
class Placed:
    id: int


@pytest.fixture
def event_types() -> EventTypeRegistry:
    return EventTypeRegistry()


@pytest.fixture
def group(event_types: EventTypeRegistry) -> ConsumerGroup:
    return ConsumerGroup("stock", event_types)


def handler(session, event) -> str:
    return "handled"


def test_handler_is_found_by_type_and_kind(group):
    """The decorator returns the function itself."""
    assert group.handles("orders.placed")(handler) is handler
    assert group.handler_of("orders.placed", TxKind.COMMIT).function is handler
    assert group.handler_of("orders.placed", TxKind.ROLLBACK) is None
    assert group.handler_of("orders.paid", TxKind.COMMIT) is None


def test_group_may_handle_and_compensate_the_same_type(group):
    def undo(session, event) -> None:
        """Undo the effect."""

    group.handles("orders.placed")(handler)
    group.compensates("orders.placed")(undo)
    found = [group.handler_of("orders.placed", kind).function for kind in TxKind]
    assert found == [handler, undo]
    assert [h.function for h in group.handlers()] == [handler, undo]


@pytest.mark.parametrize("way", ["handles", "compensates"])
def test_second_handler_of_a_type_and_kind_is_refused(group, way):
    getattr(group, way)("orders.placed")(handler)
    with pytest.raises(HandlerConflict, match=r"'stock' has two handlers for .*orders\.placed"):
        getattr(group, way)("orders.placed")(handler)


def test_handler_shares_batches_unless_declared_otherwise(group):
    group.handles("orders.placed")(handler)
    group.handles("orders.paid", alone=True)(handler)
    found = [group.handler_of(t, TxKind.COMMIT).alone for t in ("orders.placed", "orders.paid")]
    assert found == [False, True]


def test_handler_of_lists_is_found_as_any_other(group):
    assert group.handles_many("orders.placed")(handler) is handler
    found = group.handler_of("orders.placed", TxKind.COMMIT)
    assert (found.function, found.takes_list, found.alone) == (handler, True, False)
    with pytest.raises(HandlerConflict, match="two handlers"):
        group.handles("orders.placed")(handler)


@pytest.mark.parametrize("first", ["interceptor", "handler"])
def test_group_has_interceptors_or_handlers_of_lists(group, first):
    def interceptor(session, event, proceed) -> None:
        proceed()

    ways = [lambda: group.intercepts(interceptor), lambda: group.handles_many("placed")(handler)]
    one, other = ways if first == "interceptor" else ways[::-1]
    one()
    with pytest.raises(ConfigurationError, match=r"'stock': the handler of 'placed' takes a list"):
        other()


def test_missing_arguments_have_defaults(group):
    group.handles("orders.placed")(handler)
    found = group.handler_of("orders.placed", TxKind.COMMIT)
    assert (found.topic, found.retry, found.lease) == (
        "orders.placed",
        RetryPolicy(),
        timedelta(minutes=1),
    )
    assert found.payload.validate_json('{"any": [1]}') == {"any": [1]}


def test_given_arguments_are_kept(group):
    retry = RetryPolicy(max_attempts=3)
    group.handles(
        "orders.placed", payload=Placed, topic="orders", retry=retry, lease=timedelta(seconds=9)
    )(handler)
    found = group.handler_of("orders.placed", TxKind.COMMIT)
    assert (found.topic, found.retry, found.lease) == ("orders", retry, timedelta(seconds=9))
    assert found.payload.validate_json('{"id": 7}') == Placed(7)


@pytest.mark.parametrize("order", ["type first", "handler first"])
@pytest.mark.parametrize("way", ["handles", "compensates"])
def test_topic_and_payload_are_those_of_the_declared_type(event_types, group, order, way):
    if order == "type first":
        event_types.declare("orders.placed", payload=Placed, topic="orders")
    getattr(group, way)("orders.placed")(handler)
    if order == "handler first":
        event_types.declare("orders.placed", payload=Placed, topic="orders")
    kind = TxKind.COMMIT if way == "handles" else TxKind.ROLLBACK
    found = group.handler_of("orders.placed", kind)
    assert (found.topic, found.payload.validate_json('{"id": 7}')) == ("orders", Placed(7))
    assert group.subscriptions() == [("orders", kind)]
    assert [h.topic for h in group.handlers()] == ["orders"]


def test_handler_may_declare_another_payload_than_the_type(event_types, group):
    event_types.declare("orders.placed", payload=Placed, topic="orders")
    group.handles("orders.placed", payload=dict[str, int])(handler)
    found = group.handler_of("orders.placed", TxKind.COMMIT)
    assert (found.topic, found.payload.validate_json('{"id": 7}')) == ("orders", {"id": 7})


def test_group_reads_each_topic_and_kind_once_in_order(group):
    group.handles("orders.placed", topic="orders")(handler)
    group.handles("orders.paid", topic="orders")(handler)
    group.compensates("stock.reserved")(handler)
    group.handles("baskets.filled")(handler)
    assert group.subscriptions() == [
        ("baskets.filled", TxKind.COMMIT),
        ("orders", TxKind.COMMIT),
        ("stock.reserved", TxKind.ROLLBACK),
    ]


def test_interceptors_are_kept_in_the_order_of_declaration(group):
    def outer(session, event, proceed) -> None:
        proceed()

    def inner(session, event, proceed) -> None:
        proceed()

    assert group.intercepts(outer) is outer
    group.intercepts(inner)
    assert group.interceptors == [outer, inner]


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        ({"event_type": "orders placed"}, "event type 'orders placed' cannot be used"),
        ({"topic": "orders/all"}, "topic 'orders/all' cannot be used"),
        ({"payload": type("Entity", (), {})}, "payload .* of event type 'orders.placed'"),
        ({"lease": timedelta(0)}, "lease must be a timedelta above 0"),
        ({"lease": timedelta(seconds=-1)}, "lease must be a timedelta above 0"),
    ],
)
@pytest.mark.parametrize("way", ["handles", "compensates"])
def test_impossible_declaration_is_refused_at_once(group, way, declaration, problem):
    with pytest.raises(ConfigurationError, match=problem):
        getattr(group, way)(**{"event_type": "orders.placed", **declaration})


def test_group_name_is_valid_for_kafka(event_types):
    with pytest.raises(ConfigurationError, match="consumer group 'a b' cannot be used"):
        ConsumerGroup("a b", event_types)


def test_compensation_accepts_every_source_unless_named(group):
    group.compensates("orders.placed")(handler)
    group.compensates("orders.paid", authorised=["stock", "billing"])(handler)
    assert group.handler_of("orders.placed", TxKind.ROLLBACK).authorised is None
    assert group.handler_of("orders.paid", TxKind.ROLLBACK).authorised == {"stock", "billing"}


@pytest.mark.parametrize("nobody", ["stock", [], [""], ["the stock"]])
def test_authorised_sources_are_names(group, nobody):
    with pytest.raises(ConfigurationError, match=r"authorised must name sources|cannot be used"):
        group.compensates("orders.placed", authorised=nobody)


@pytest.mark.parametrize("retry", [3, 0, RetryPolicy])
def test_retry_that_is_no_policy_is_refused(group, event_types, retry) -> None:
    with pytest.raises(ConfigurationError, match=r"orders\.placed.*retry must be a RetryPolicy"):
        group.handles("orders.placed", retry=retry)
    with pytest.raises(ConfigurationError, match=r"orders\.placed.*retry must be a RetryPolicy"):
        event_types.declare("orders.placed", retry=retry)


def test_decorator_without_its_parentheses_is_refused(group) -> None:
    with pytest.raises(ConfigurationError, match="event type must be a text, not a function"):
        group.handles(handler)


def test_payload_type_given_as_a_text_is_refused(group) -> None:
    with pytest.raises(ConfigurationError, match=r"'Placed' of a handler .* is a text"):
        group.handles("orders.placed", payload="Placed")


class Late(BaseModel):
    model_config = ConfigDict(defer_build=True)
    number: int


class Before(BaseModel):
    """A model that names one below."""

    after: After | None = None


BEFORE = payload_type(Before, of="a test")


class After(BaseModel):
    number: int


def test_payload_type_must_be_complete_when_a_worker_is_built() -> None:
    for complete in (Before, Late, list[Late]):
        require_complete(payload_type(complete, of="a test"), of="a test")
    require_complete(BEFORE, of="a test")
    with pytest.raises(ConfigurationError, match=r"a test is incomplete.*Undefined"):
        require_complete(payload_type(list["Undefined"], of="a test"), of="a test")  # noqa: F821
