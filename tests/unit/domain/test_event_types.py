"""Valid event types, and the fields of an event in addition to its payload."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx import Event, EventRefused, RetryPolicy, TxKind, new_event_id
from shieldtx.domain.event_fields import EventLimits
from shieldtx.domain.event_types import NAME, EventTypeRegistry, checked_name
from shieldtx.errors import ConfigurationError, TooLarge, UnknownEventType


@pytest.fixture
def event_types() -> EventTypeRegistry:
    made = EventTypeRegistry()
    made.declare("orders.placed")
    return made


def refusal(event_types: EventTypeRegistry, **fields: Any) -> EventRefused:
    with pytest.raises(EventRefused) as caught:
        event_types.encode(Event(type="orders.placed", **fields))
    return caught.value


def test_type_has_its_own_topic_and_ten_attempts_by_default(
    event_types: EventTypeRegistry,
):
    plain = event_types.get("orders.placed")
    assert (plain.topic, plain.retry.max_attempts) == ("orders.placed", 10)
    declared = event_types.declare("orders.paid", topic="orders", retry=RetryPolicy(max_attempts=3))
    assert (declared.topic, declared.retry.max_attempts) == ("orders", 3)
    assert [t.name for t in event_types] == ["orders.placed", "orders.paid"]


def test_second_declaration_of_a_type_is_refused(event_types: EventTypeRegistry):
    with pytest.raises(ConfigurationError, match=r"'orders.placed' is declared twice"):
        event_types.declare("orders.placed")


def test_unknown_type_is_refused_with_the_known_ones(event_types: EventTypeRegistry):
    assert event_types.find("orders.plcaed") is None
    with pytest.raises(UnknownEventType, match=r"'orders.plcaed'.*declared: orders.placed"):
        event_types.encode(Event(type="orders.plcaed"))


@pytest.mark.parametrize("payload", [type("Entity", (), {}), 3])
def test_type_unknown_to_pydantic_cannot_be_a_payload(payload: Any):
    with pytest.raises(ConfigurationError, match=r"payload .* of event type 'orders.placed'"):
        EventTypeRegistry().declare("orders.placed", payload=payload)


@pytest.mark.parametrize(
    "name", ["", " ", "orders placed", "orders/placed", "ørders", ".orders", "-o", "a" * 201, "a\n"]
)
def test_name_that_kafka_refuses_is_refused_at_declaration(name: str):
    with pytest.raises(ConfigurationError, match=r"event type .* cannot be used"):
        EventTypeRegistry().declare(name)
    with pytest.raises(ConfigurationError, match=r"topic .* cannot be used"):
        EventTypeRegistry().declare("orders.placed", topic=name)


@given(st.from_regex(NAME, fullmatch=True))
def test_name_of_kafka_characters_is_accepted_unchanged(name: str):
    assert checked_name("topic", name) == name


@pytest.mark.parametrize("field", ["key", "biz_key"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (42, "must be text, not int"),
        (uuid4(), "must be text, not UUID"),
        ("a\x00b", "NUL"),
        ("a\ud800", "lone surrogate"),
        ("k" * 513, "513 bytes, the limit is 512"),
        ("š" * 257, "514 bytes, the limit is 512"),
    ],
)
def test_invalid_key_is_refused_by_name(event_types, field, text, problem):
    error = refusal(event_types, **{field: text})
    assert error.field == field
    assert problem in error.problem


def test_key_at_its_limit_is_accepted(event_types: EventTypeRegistry):
    event_types.encode(Event(type="orders.placed", key="š" * 256, biz_key="k" * 512))


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"a b": "x"}, "headers['a b']"),
        ({"": "x"}, "headers['']"),
        ({"ce_id": "x"}, "headers['ce_id']"),
        ({"content-type": "x"}, "headers['content-type']"),
        ({7: "x"}, "headers[7]"),
        ({"tenant": 7}, "headers['tenant']"),
        ({"tenant": "x\x00"}, "headers['tenant']"),
        ({"tenant": "\udc00"}, "headers['tenant']"),
        ("tenant", "headers"),
        ({f"h{n}": "x" * 1000 for n in range(17)}, "headers"),
    ],
)
def test_invalid_headers_are_refused_by_name(event_types, headers, field):
    assert refusal(event_types, headers=headers).field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": uuid4()}, "id"),
        ({"id": UUID(int=0)}, "id"),
        ({"id": str(new_event_id())}, "id"),
        ({"kind": "ROLLBACK", "causation_id": new_event_id()}, "kind"),
        ({"operation": "UPSERT"}, "operation"),
        ({"causation_id": "somewhere"}, "causation_id"),
        ({"causation_source": "a\x00b"}, "causation_source"),
        ({"causation_source": "s" * 1000}, "causation_source"),
        ({"traceparent": "00-\ud800"}, "traceparent"),
        ({"traceparent": "t" * 1000}, "traceparent"),
        ({"kind": TxKind.ROLLBACK}, "causation_id"),
    ],
)
def test_field_of_the_wrong_kind_is_refused_by_name(event_types, fields, field):
    assert refusal(event_types, **fields).field == field


def test_payload_above_its_limit_is_refused_with_both_sizes():
    event_types = EventTypeRegistry(EventLimits(payload=10))
    event_types.declare("orders.placed")
    assert event_types.encode(Event(type="orders.placed", payload="12345678")) == '"12345678"'
    with pytest.raises(TooLarge) as caught:
        event_types.encode(Event(type="orders.placed", payload="1234567š"))
    assert caught.value.field == "payload"
    assert caught.value.problem == "11 bytes as JSON, the limit is 10"


def test_default_limits_fit_a_record_of_kafka_default_size():
    limits = EventLimits()
    assert limits.payload + limits.key + limits.biz_key + limits.headers < 1_048_588


def test_declared_retry_policy_is_kept(event_types: EventTypeRegistry):
    policy = RetryPolicy(first=timedelta(seconds=3))
    assert event_types.declare("orders.paid", retry=policy).retry is policy
