"""The error of a payload that does not fit its type contains no part of the payload."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_serializer,
)
from pydantic_core import ErrorDetails, PydanticSerializationError
from pydantic_core._pydantic_core import list_all_errors
from typing_extensions import TypedDict

from shieldtx.domain.misfits import message_of_misfit
from shieldtx.domain.payloads import decode_payload, encode_payload
from shieldtx.domain.reasons import reason_of
from shieldtx.errors import PayloadRefused

SECRET = "DE4111"


def _is_iban(value: str) -> str:
    raise ValueError(f"{value} is no IBAN")


def _is_positive(value: int) -> int:
    assert value > 0, f"{value} is not above 0"
    return value


class Card(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["card"]
    number: int


class Account(BaseModel):
    kind: Literal["account"]
    iban: Annotated[str, AfterValidator(_is_iban)]


class Line(TypedDict):
    price: int


@dataclass
class Order:
    lines: list[Line]
    paid_by: Annotated[Card | Account, Field(discriminator="kind")]
    amounts: dict[str, dict[int, int]]
    count: Annotated[int, AfterValidator(_is_positive)] = 1


FITS: dict[str, Any] = {
    "lines": [{"price": 1}],
    "paid_by": {"kind": "card", "number": 1},
    "amounts": {"a": {"1": 1}},
}
ORDER = TypeAdapter(Order)


def _refusal(payload: Any) -> str:
    with pytest.raises(PayloadRefused) as refused:
        decode_payload(ORDER, json.dumps(payload))
    return str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lines": [{"price": SECRET}]}, "payload.lines[0].price: Input should be a valid integer"),
        ({"amounts": {SECRET: 1}}, "payload.amounts[key]: Input should be an object"),
        ({"amounts": {SECRET: {"4111": "x"}}}, "payload.amounts[key][key]: Input should be"),
        ({"paid_by": {"kind": SECRET}}, "payload.paid_by: union_tag_invalid, whose text is left"),
        (
            {"paid_by": {"kind": "account", "iban": SECRET}},
            "payload.paid_by.account.iban: value_error, whose text is left out",
        ),
        (
            {"paid_by": {"kind": "card", "number": 1, SECRET: 1}},
            "payload.paid_by.card[key]: Extra inputs are not permitted",
        ),
        ({"count": -4111}, "payload.count: assertion_error, whose text is left out"),
    ],
)
def test_refusal_names_the_place_and_the_kind_only(wrong: dict[str, Any], said: str) -> None:
    text = _refusal(FITS | wrong)
    assert said in text
    assert "4111" not in text


def test_error_of_a_handler_model_is_reduced_to_its_fields() -> None:
    with pytest.raises(ValidationError) as raised:
        Card.model_validate({"kind": "card", "number": SECRET, SECRET: SECRET})
    assert reason_of(raised.value) == (
        "ValidationError: Card does not fit: number: int_parsing, [key]: extra_forbidden"
    )


class Masked(BaseModel):
    iban: Any

    @field_serializer("iban")
    def mask(self, value: Any) -> str:
        if value == SECRET:
            raise ValueError(f"cannot mask {value}")
        return value  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (SECRET, "a value cannot be written, the text is left out"),
        (b"\xff4111", "a value cannot be written, the text is left out"),
        (object(), "Unable to serialize unknown type: <class 'object'>"),
    ],
)
def test_serialization_error_names_no_value(value: Any, said: str) -> None:
    with pytest.raises(PydanticSerializationError) as raised:
        Masked(iban=value).model_dump_json()
    assert reason_of(raised.value) == f"PydanticSerializationError: {said}"


def test_pydantic_warning_that_is_an_error_quotes_no_value() -> None:
    with pytest.raises(PydanticSerializationError, match="4111") as raised:
        Card.model_construct(kind="card", number="4111").model_dump_json(warnings="error")
    assert "4111" not in reason_of(raised.value)


@pytest.mark.parametrize("key", [SECRET, 41111111])
def test_error_of_another_type_names_no_keys(key: str | int) -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(dict[str | int, list[int]]).validate_python({key: [1, SECRET]})
    reason = reason_of(raised.value)
    assert "[key][1]: int_parsing" in reason
    assert "4111" not in reason


texts = st.sampled_from([SECRET, f"a {SECRET}", "kind", "card", "iban", "lines"])
values = st.recursive(
    st.one_of(st.none(), st.integers(0, 3), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


DECLARED = {
    "class",
    "class_name",
    "decimal_places",
    "discriminator",
    "expected",
    "expected_plural",
    "expected_schemes",
    "expected_version",
    "field_type",
    "ge",
    "gt",
    "le",
    "lt",
    "max_digits",
    "max_length",
    "method_name",
    "min_length",
    "multiple_of",
    "pattern",
    "whole_digits",
}
"""The parts of pydantic's messages that come from the type."""
COUNTED = {"actual_length"}
PARSERS = {
    "date_from_datetime_parsing",
    "date_parsing",
    "datetime_from_date_parsing",
    "datetime_parsing",
    "json_invalid",
    "time_delta_parsing",
    "time_parsing",
    "url_parsing",
    "url_syntax_violation",
}
"""Kinds whose `error` is one of a parser's own phrases."""


def test_shown_pydantic_messages_contain_declared_names_only() -> None:
    shown = []
    for each in list_all_errors():
        names = {name for _, name, _, _ in Formatter().parse(each["message_template_python"])}
        error = ErrorDetails(type=each["type"], loc=(), msg="its text", input=None)
        is_declared = names - {None} <= DECLARED | COUNTED or each["type"] in PARSERS
        if message_of_misfit(error) == "its text" and not is_declared:
            shown.append(each["type"])
    assert shown == []


class HasNoRate:
    @property
    def rate(self) -> int:
        raise ValueError(f"no rate for {SECRET}")


class Rate(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    rate: int


class FailingMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise ValueError(SECRET)

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def failing_rows() -> Iterator[int]:
    yield 1
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("type_", "make", "kind"),
    [
        (Rate, HasNoRate, "get_attribute_error"),
        (list[int], failing_rows, "iteration_error"),
        (dict[str, int], FailingMapping, "mapping_type"),
    ],
)
def test_errors_raised_by_payload_code_are_left_out(type_, make, kind) -> None:
    with pytest.raises(PayloadRefused, match=f"{kind}, whose text is left out") as refused:
        encode_payload(TypeAdapter(type_), make(), 1000)
    assert SECRET not in reason_of(refused.value)


@given(
    st.fixed_dictionaries(
        {name: st.one_of(st.just(value), values) for name, value in FITS.items()},
        optional={"count": st.one_of(values, st.just(-1))},
    )
)
def test_no_payload_is_quoted_in_any_refusal(payload: dict[str, Any]) -> None:
    said = []
    try:
        decode_payload(ORDER, json.dumps(payload))
    except PayloadRefused as refused:
        said += [str(refused), reason_of(refused)]
    assert not [text for text in said if "4111" in text]
