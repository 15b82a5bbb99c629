"""Payloads: a valid one is read back unchanged; an invalid one is refused by its field."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    Field,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    field_serializer,
)
from typing_extensions import TypedDict

from shieldtx.domain.payloads import decode_payload, encode_payload
from shieldtx.domain.reasons import loggable, reason_of
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
def test_any_json_is_read_back_unchanged(value: Any):
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
def test_payload_of_a_declared_type_is_read_back_equal(type_: Any, payload: Any):
    assert decode_payload(TypeAdapter(type_), encode(payload, type_)) == payload


def test_model_is_written_under_its_aliases():
    assert encode(Payment(orderId=7), Payment) == '{"orderId":7,"extra":{}}'


def test_undeclared_payload_may_hold_types_with_a_json_form():
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
        (Payment, Payment.model_construct(), "payload.orderId"),  # type: ignore[call-arg]
        (Payment, Payment(orderId=1, extra={"a": [object()]}), "payload.extra[key][0]"),
        (Payment, Payment(orderId=1, extra={"a": [math.nan]}), "payload.extra[key][0]"),
        (Payment, Payment(orderId=1, extra={"a": "\x00"}), "payload.extra[key]"),
        (float, math.inf, "payload"),
        (list[float], [1.0, math.nan], "payload[1]"),
        (bytes, b"\xff", "payload"),
    ],
)
def test_payload_that_does_not_fit_is_refused_by_its_field(type_, payload, field):
    assert refusal(payload, type_).field == field


@pytest.mark.parametrize(
    ("payload", "field", "problem"),
    [
        ({"a": [1, math.nan]}, "payload[key][1]", "not a JSON number"),
        ({"a": -math.inf}, "payload[key]", "not a JSON number"),
        ({"a": {"b": "x\x00"}}, "payload[key][key]", "NUL"),
        ({"a": {"b\x00": 1}}, "payload[key]", "a key holds a NUL"),
        ({"a": ("\ud83d",)}, "payload[key][0]", "lone surrogate"),
        ({"\udc00": 1}, "payload", "a key holds a lone surrogate"),
        ({"a": [object()]}, "payload[key][0]", "object"),
        ({"a": b"\xff\xfe"}, "payload[key]", "UTF-8"),
        ({"a": 10**5000}, "payload[key]", "digits"),
        ({"a": {"\ud800"}}, "payload[key][0]", "lone surrogate"),
    ],
)
def test_value_that_json_cannot_carry_is_refused_by_its_field(payload, field, problem):
    error = refusal(payload)
    assert error.field == field
    assert problem in error.problem


def test_payload_that_contains_itself_is_refused_by_its_field():
    inner: dict[str, Any] = {}
    inner["again"] = [inner]
    error = refusal({"a": inner})
    assert error.field.startswith("payload[key][key][0]")
    assert error.problem == "contains itself"


@pytest.mark.parametrize("levels", [150, 190, 200, 201, 210, 250, 300, 1000, 100_000])
def test_deeply_nested_payload_is_refused_or_can_be_read_again(levels: int):
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


def test_backslash_before_u0000_is_ordinary_text():
    text = r"C:\u0000 \\u0000"
    assert decode_payload(ANY, encode({text: text})) == {text: text}
    assert refusal({"a": text + "\x00"}).field == "payload[key]"


def test_size_counts_bytes_not_characters():
    adapter = TypeAdapter(str)
    assert encode_payload(adapter, "š" * 10, 22)
    with pytest.raises(TooLarge, match="22 bytes as JSON, the limit is 21"):
        encode_payload(adapter, "š" * 10, 21)


def test_refusal_contains_no_refused_value():
    secret = "4111-1111-1111-1111"
    for payload, type_ in [
        (Line("milk", Decimal(1), secret), Line),
        ({"name": "Ada", "age": secret}, Customer),
        (Payment.model_construct(order_id=secret), Payment),
        ({"a": secret + "\x00"}, Any),
    ]:
        assert secret not in str(refusal(payload, type_))


class Masked(BaseModel):
    iban: SecretStr | SecretBytes | Secret[int]
    note: str = "**********"


class Shown(BaseModel):
    iban: SecretStr

    @field_serializer("iban", when_used="json")
    def shown(self, value: SecretStr) -> str:
        return value.get_secret_value()


@pytest.mark.parametrize("secret", [SecretStr("DE4111"), SecretBytes(b"DE4111"), Secret[int](4111)])
def test_secret_that_pydantic_would_mask_is_refused(secret: Any):
    for payload, type_, field in [
        (Masked.model_construct(iban=secret), Masked, "payload.iban"),
        ([Masked.model_construct(iban=secret)], list[Masked], "payload[0].iban"),
        ({"a": Masked.model_construct(iban=secret)}, Any, "payload[key][key]"),
        ({"a": secret}, Any, "payload[key]"),
    ]:
        error = refusal(payload, type_)
        assert error.field == field
        assert "declare a plain type, such as str, or write it with a field_ser" in error.problem
        assert "4111" not in str(error)


def test_secret_with_its_own_serializer_is_written():
    """Asterisks are ordinary text."""
    assert encode(Shown(iban=SecretStr("DE4111")), Shown) == '{"iban":"DE4111"}'
    assert encode({"a": "**********"}) == '{"a":"**********"}'


@pytest.mark.parametrize(
    ("payload", "type_", "field"),
    [
        ({1: "a", "1": "b"}, Any, "payload"),
        ({True: "a", "true": "b"}, Any, "payload"),
        ({"a": [{(1, 2): "a", "1,2": "b"}]}, Any, "payload[key][0]"),
        ({1: "a", "1": "b"}, dict[int | str, str], "payload"),
        (Payment(orderId=1, extra={"a": {None: 1, "None": 2}}), Payment, "payload.extra[key]"),
    ],
)
def test_keys_that_json_would_merge_are_refused(payload, type_, field):
    error = refusal(payload, type_)
    assert error.field == field
    assert "keys that are the same in JSON" in error.problem


class Uncomparable(BaseModel):
    id: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_payload_that_cannot_be_compared_is_written():
    assert encode(Uncomparable(id=1), Uncomparable) == '{"id":1}'
    assert encode({Decimal(1): "a", 1.5: "b", "c": Uncomparable(id=1)})


SECRET = "DE4111"


class FailsToShow(BaseModel):
    iban: str = SECRET

    @field_serializer("iban")
    def shown(self, value: str) -> str:
        raise LookupError(f"cannot mask {value}")


class FailsToShowAsJson(BaseModel):
    iban: str = SECRET

    @field_serializer("iban", when_used="json")
    def shown(self, value: str) -> str:
        raise LookupError(f"cannot mask {value}")


class FailingMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise ValueError(SECRET)

    def __iter__(self) -> Iterator[str]:
        return iter([SECRET])

    def __len__(self) -> int:
        return 1


class Unwritable:
    def __repr__(self) -> str:
        return SECRET


class Book(BaseModel):
    balances: dict[str, Any] = {}
    rows: list[Any] = []


def itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value[SECRET] = value
    return value


WRONG: list[Callable[[], Any]] = [
    lambda: math.nan,
    lambda: f"{SECRET}\x00",
    lambda: f"{SECRET}\ud800",
    lambda: SECRET.encode() + b"\xff",
    lambda: {SECRET + "\x00": 1},
    lambda: {Unwritable(): 1},
    lambda: {4111: math.nan},
    Unwritable,
    FailsToShow,
    FailsToShowAsJson,
    FailingMapping,
    itself,
    lambda: FailsToShow.model_construct(iban=4111),
]
"""Payloads that cannot be written, with a customer's value in them or in the error they raise."""
HOLDERS: list[tuple[Any, Callable[[Any], Any]]] = [
    (Any, lambda wrong: wrong),
    (Any, lambda wrong: {SECRET: wrong}),
    (Any, lambda wrong: {"a": [SECRET, {SECRET: wrong}]}),
    (Any, lambda wrong: Book(balances={SECRET: wrong})),
    (dict[str, Any], lambda wrong: {SECRET: {SECRET: wrong}}),
    (Book, lambda wrong: Book(balances={SECRET: wrong})),
    (Book, lambda wrong: Book(rows=[{SECRET: wrong}])),
    (dict[str, Book], lambda wrong: {SECRET: Book(balances={SECRET: wrong})}),
]


@pytest.mark.parametrize(("type_", "holder"), HOLDERS)
@pytest.mark.parametrize("wrong", WRONG)
def test_refusal_has_no_keys_values_or_errors_of_the_payload(wrong, type_, holder):
    error = refusal(holder(wrong()), type_)
    logged = "".join(traceback.format_exception(loggable(error)))
    for text in (str(error), repr(error), error.field, error.problem, reason_of(error), logged):
        assert "4111" not in text


@pytest.mark.parametrize("text", ["", "{", "nul", '{"a":NaN}', "[" * 300 + "]" * 300, "\ufeff1"])
def test_stored_text_that_is_not_json_is_refused_when_read(text: str):
    with pytest.raises(PayloadRefused):
        decode_payload(TypeAdapter(dict[str, int]), text)
