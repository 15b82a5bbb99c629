"""Payloads: what fits is stored and comes back the same, what does not is refused by its field."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from shieldtx.domain.payloads import decode_payload, encode_payload
from shieldtx.errors import PayloadRefused, TooLarge

LIMIT = 100_000
ANY = TypeAdapter(Any)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda parts: st.lists(parts) | st.dictionaries(TEXTS, parts),
    max_leaves=30,
)


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    quantity: Annotated[int, Field(gt=0)] = 1


@dataclass(frozen=True)
class Order:
    id: UUID
    placed: datetime
    due: date | None
    lines: list[Line]
    tags: frozenset[str] = frozenset()
    notes: Any = None


class Customer(TypedDict):
    name: str
    age: int


class Payment(BaseModel):
    order_id: int = Field(alias="orderId", gt=0)
    extra: dict[str, Any] = {}


AN_ORDER = Order(
    id=UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
    placed=datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    due=date(2024, 3, 1),
    lines=[Line("milk", Decimal("1.10")), Line("bread", Decimal("3E+1"), 2)],
    tags=frozenset({"new", "gift"}),
    notes={"a": [1, None, "ü", "\\u0000", "</script>"]},
)


def encode(payload: Any, type_: Any = Any) -> str:
    return encode_payload(ANY if type_ is Any else TypeAdapter(type_), payload, LIMIT)


def refusal(payload: Any, type_: Any = Any) -> PayloadRefused:
    with pytest.raises(PayloadRefused) as caught:
        encode(payload, type_)
    str(caught.value).encode()  # can be logged
    return caught.value


@given(JSON)
def test_any_json_comes_back_as_it_was(value: Any):
    assert decode_payload(ANY, encode_payload(ANY, value, 10**9)) == value


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (Order, AN_ORDER),
        (Customer, {"name": "Ada", "age": 36}),
        (Payment, Payment(orderId=7, extra={"a": {"b": None}})),
        (Payment | None, None),
        (list[Line], AN_ORDER.lines),
        (float, 1e300),
        (bytes, b"\x01text"),
        (None, None),
    ],
)
def test_a_payload_of_a_declared_type_comes_back_equal(type_: Any, payload: Any):
    assert decode_payload(TypeAdapter(type_), encode(payload, type_)) == payload


def test_a_model_travels_under_the_names_that_it_is_read_by():
    assert encode(Payment(orderId=7), Payment) == '{"orderId":7,"extra":{}}'


def test_an_undeclared_payload_may_hold_what_json_has_a_usual_form_for():
    payload = {
        "price": Decimal("1.10"),
        "at": datetime(2024, 1, 2, tzinfo=UTC),
        "id": UUID(int=1),
        "raw": b"ok",
        "once": {7},
        "order": Line("milk", Decimal(1)),
        3: None,
    }
    assert json.loads(encode(payload)) == {
        "price": "1.10",
        "at": "2024-01-02T00:00:00Z",
        "id": "00000000-0000-0000-0000-000000000001",
        "raw": "ok",
        "once": [7],
        "order": {"sku": "milk", "price": "1", "quantity": 1},
        "3": None,
    }


@pytest.mark.parametrize(
    ("type_", "payload", "field"),
    [
        (Customer, {"name": "Ada"}, "payload.age"),
        (Customer, {"name": "Ada", "age": "old"}, "payload.age"),
        (Customer, None, "payload"),
        (Line, Line("milk", "dear"), "payload.price"),
        (Line, Line("milk", Decimal(1), "2"), "payload.quantity"),
        (Line, Line("milk", Decimal(1), quantity=0), "payload.quantity"),
        (Line, Line("milk", Decimal("NaN")), "payload.price"),
        (list[Line], [Line("a", Decimal(1)), Line(3, Decimal(1))], "payload[1].sku"),
        (Payment, Payment.model_construct(order_id="x"), "payload.orderId"),
        (Payment, Payment.model_construct(order_id=-1), "payload.orderId"),
        (Payment, Payment.model_construct(), "payload.orderId"),
        (Payment, Payment(orderId=1, extra={"a": [object()]}), "payload.extra.a[0]"),
        (Payment, Payment(orderId=1, extra={"a": [math.nan]}), "payload.extra.a[0]"),
        (Payment, Payment(orderId=1, extra={"a": "\x00"}), "payload.extra.a"),
        (float, math.inf, "payload"),
        (list[float], [1.0, math.nan], "payload[1]"),
        (bytes, b"\xff", "payload"),
    ],
)
def test_what_does_not_fit_its_declared_type_is_refused_by_its_field(type_, payload, field):
    assert refusal(payload, type_).field == field


@pytest.mark.parametrize(
    ("payload", "field", "problem"),
    [
        ({"a": [1, math.nan]}, "payload.a[1]", "no JSON number"),
        ({"a": -math.inf}, "payload.a", "no JSON number"),
        ({"a": {"b": "x\x00"}}, "payload.a.b", "NUL"),
        ({"a": {"b\x00": 1}}, "payload.a (a key)", "NUL"),
        ({"a": ("\ud83d",)}, "payload.a[0]", "lone surrogate"),
        ({"\udc00": 1}, "payload (a key)", "lone surrogate"),
        ({"a": [object()]}, "payload.a[0]", "object"),
        ({"a": b"\xff\xfe"}, "payload.a", "utf-8"),
        ({"a": 10**5000}, "payload.a", "digits"),
        ({"a": {"\ud800"}}, "payload.a[0]", "lone surrogate"),
    ],
)
def test_what_json_text_cannot_carry_is_refused_by_its_field(payload, field, problem):
    error = refusal(payload)
    assert error.field == field
    assert problem in error.problem


def test_a_payload_that_contains_itself_is_refused_where_it_does():
    inner: dict[str, Any] = {}
    inner["again"] = [inner]
    error = refusal({"a": inner})
    assert error.field.startswith("payload.a.again[0]")
    assert error.problem == "contains itself"


@pytest.mark.parametrize("levels", [150, 190, 200, 201, 210, 250, 300, 1000, 100_000])
def test_a_deeply_nested_payload_is_refused_or_can_be_read_again(levels: int):
    payload: list[Any] = []
    for _ in range(levels):
        payload = [payload]
    try:
        text = encode(payload)
    except PayloadRefused as error:
        assert error.field == "payload"  # noqa: PT017  either way is right, but for half of each
        assert "nested" in error.problem  # noqa: PT017
        assert levels > 150
    else:
        assert json.dumps(decode_payload(ANY, text)) == json.dumps(payload)


def test_a_backslash_before_u0000_is_text_like_any_other():
    text = r"C:\u0000 \\u0000"
    assert decode_payload(ANY, encode({text: text})) == {text: text}
    assert refusal({"a": text + "\x00"}).field == "payload.a"


def test_the_size_counts_bytes_not_characters():
    adapter = TypeAdapter(str)
    assert encode_payload(adapter, "š" * 10, 22)
    with pytest.raises(TooLarge, match="22 bytes as JSON, the limit is 21"):
        encode_payload(adapter, "š" * 10, 21)


def test_a_refusal_says_nothing_of_the_values_that_it_refuses():
    secret = "4111-1111-1111-1111"
    for payload, type_ in [
        (Line("milk", Decimal(1), secret), Line),
        ({"name": "Ada", "age": secret}, Customer),
        (Payment.model_construct(order_id=secret), Payment),
        ({"a": secret + "\x00"}, Any),
    ]:
        assert secret not in str(refusal(payload, type_))


@pytest.mark.parametrize("text", ["", "{", "nul", '{"a":NaN}', "[" * 300 + "]" * 300, "\ufeff1"])
def test_a_stored_text_that_is_no_json_is_refused_when_read(text: str):
    with pytest.raises(PayloadRefused):
        decode_payload(TypeAdapter(dict[str, int]), text)
