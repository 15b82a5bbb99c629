"""Whether a reader accepts what a writer writes: planted breaks, changes that fit, an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, computed_field
from typing_extensions import TypedDict

from shieldtx.catalog.catalog import schema_of
from shieldtx.catalog.readability import misfits


def problems(writer: Any, reader: Any) -> list[str]:
    """Return the misfits between two types of payloads, as text."""
    schemas = [schema_of(TypeAdapter(t), mode="serialization", of="x") for t in (writer, reader)]
    return [str(misfit) for misfit in misfits(*schemas)]


def of(**fields: Any) -> Any:
    """Return a dataclass type named Booking; a pair is a type and a default."""
    namespace: dict[str, Any] = {"__annotations__": {}}
    for name, given_ in fields.items():
        if isinstance(given_, tuple):
            namespace["__annotations__"][name], namespace[name] = given_
        else:
            namespace["__annotations__"][name] = given_
    return dataclass(kw_only=True)(type("Booking", (), namespace))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class MoreColours(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Bird(BaseModel):
    kind: Literal["bird"] = "bird"


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
MorePets = Annotated[Cat | Dog | Bird, Field(discriminator="kind")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    room: int


class Partial(TypedDict):
    room: NotRequired[int]


class Required(TypedDict):
    room: int


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class NumberedTree(BaseModel):
    name: str
    number: int
    children: list[NumberedTree] = []


class WithTotal(BaseModel):
    room: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return self.room


BREAKS: dict[str, tuple[Any, Any, str]] = {
    "required field is new": (of(room=int), of(room=int, price=int), "payload.price: is required"),
    "required field is renamed": (of(room=int), of(chamber=int), "payload.chamber: is required"),
    "required field becomes optional": (of(room=(int, 1)), of(room=int), "may be left out"),
    "key becomes not required": (Partial, Required, "payload.room: is required and may be left"),
    "number becomes text": (of(room=int), of(room=str), "integer is written, only string is read"),
    "text becomes number": (of(room=str), of(room=int), "string is written, only integer is read"),
    "fraction becomes integer": (of(room=float), of(room=int), "number is written, only integer"),
    "boolean becomes integer": (of(room=bool), of(room=int), "boolean is written"),
    "decimal becomes float": (of(price=Decimal), of(price=float), "string is written"),
    "null is refused": (of(room=int | None), of(room=int), "null is written, only integer"),
    "union loses a type": (of(room=int | str), of(room=int), "string is written"),
    "any value is refused": (of(room=Any), of(room=int), "any JSON value is written"),
    "date-time becomes date": (of(at=datetime), of(at=date), "format date is read"),
    "text becomes UUID": (of(id=str), of(id=UUID), "format uuid is read, and any text is written"),
    "value of an enum is removed": (of(c=MoreColours), of(c=Colour), "not read: 'green'"),
    "text becomes an enum": (of(c=str), of(c=Colour), "only 'blue', 'red' are read"),
    "literal changes": (of(c=Literal["a"]), of(c=Literal["b"]), "not read: 'a'"),
    "enum of texts becomes numbers": (of(c=Literal["1"]), of(c=Literal[1]), "not read: '1'"),
    "literal becomes a number": (of(c=Literal["a"]), of(c=int), "string is written"),
    "list becomes one": (of(r=list[int]), of(r=int), "array is written"),
    "item changes": (of(r=list[int]), of(r=list[str]), "payload.r[]: integer is written"),
    "item of a tuple changes": (of(r=tuple[int, int]), of(r=tuple[int, str]), r"payload.r[1]"),
    "tuple becomes longer": (of(r=tuple[int]), of(r=tuple[int, int]), "minItems 2 is read"),
    "list becomes a set": (of(r=list[int]), of(r=set[int]), "equal items are written"),
    "value of a mapping changes": (of(r=dict[str, int]), of(r=dict[str, str]), "payload.r.*"),
    "lower bound is raised": (
        of(r=Annotated[int, Field(ge=1)]),
        of(r=Annotated[int, Field(ge=2)]),
        "minimum 2 is read",
    ),
    "bound becomes exclusive": (
        of(r=Annotated[int, Field(ge=1)]),
        of(r=Annotated[int, Field(gt=1)]),
        "exclusiveMinimum 1 is read",
    ),
    "upper bound is new": (of(r=int), of(r=Annotated[int, Field(le=9)]), "maximum 9 is read"),
    "text becomes shorter": (
        of(r=Annotated[str, Field(max_length=9)]),
        of(r=Annotated[str, Field(max_length=8)]),
        "maxLength 8 is read",
    ),
    "text may no longer be empty": (
        of(r=str),
        of(r=Annotated[str, Field(min_length=1)]),
        "minLength 1 is read",
    ),
    "text becomes limited": (
        of(r=str),
        of(r=Annotated[str, Field(max_length=8)]),
        "maxLength 8 is read, and more is written",
    ),
    "tuple becomes a list of one type": (
        of(r=tuple[int, str]),
        of(r=list[int]),
        "payload.r[1]: string is written",
    ),
    "field of one type of a union": (
        of(p=of(a=str)),
        of(p=of(a=int) | None),
        "payload.p.a: string is written",
    ),
    "literal becomes a pattern": (
        of(c=Literal["a"]),
        of(c=Annotated[str, Field(pattern="a")]),
        "conditions pattern cannot be compared",
    ),
    "pattern changes": (
        of(r=Annotated[str, Field(pattern="a+")]),
        of(r=Annotated[str, Field(pattern="a")]),
        "pattern 'a' is read",
    ),
    "multiple is new": (of(r=int), of(r=Annotated[int, Field(multiple_of=5)]), "multipleOf 5"),
    "further field is refused": (of(room=int, price=int), Strict, "payload.price: is not declared"),
    "mapping becomes an object": (dict[str, int], of(room=int), "payload.room: is required"),
    "union of models loses one": (of(p=MorePets), of(p=Pet), "payload.p: fits none of the 2"),
    "type of the whole payload": (list[int], of(room=int), "array is written, only object"),
    "field deep inside a cycle": (Tree, NumberedTree, "payload.number: is required and is new"),
    "nested in a list of lists": (
        of(r=list[list[of(a=int)]]),
        of(r=list[list[of(a=str)]]),
        "payload.r[][].a: integer",
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_planted_break_is_found_at_its_path(what: str) -> None:
    writer, reader, expected = BREAKS[what]
    found = problems(writer, reader)
    assert any(expected in problem for problem in found), found
    assert problems(writer, writer) == problems(reader, reader) == []


FITS: dict[str, tuple[Any, Any]] = {
    "optional field is new": (of(room=int), of(room=int, price=(int, 0))),
    "field with a factory is new": (
        of(room=int),
        of(room=int, tags=(list[str], field(default_factory=list))),
    ),
    "field is no longer read": (of(room=int, price=int), of(room=int)),
    "field becomes optional": (of(room=int), of(room=(int, 1))),
    "integer becomes a number": (of(room=int), of(room=float)),
    "null is accepted": (of(room=int), of(room=int | None)),
    "union gains a type": (of(room=int | str), of(room=int | str | bool)),
    "enum gains a value": (of(c=Colour), of(c=MoreColours)),
    "enum becomes text": (of(c=Colour), of(c=str)),
    "UUID becomes text": (of(id=UUID), of(id=str)),
    "any value is read": (of(room=int), of(room=Any)),
    "union of models gains one": (of(p=Pet), of(p=MorePets)),
    "bounds are widened": (
        of(r=Annotated[int, Field(gt=1, le=8)]),
        of(r=Annotated[int, Field(ge=1, lt=10)]),
    ),
    "tuple becomes a list": (of(r=tuple[int, int]), of(r=list[int])),
    "object becomes a mapping": (of(room=int), dict[str, int]),
    "computed field is new": (of(room=int), WithTotal),
    "same cycle": (Tree, Tree),
    "title and description": (
        of(room=Annotated[int, Field(title="Room", description="its number")]),
        of(room=Annotated[int, Field(examples=[7], deprecated=True)]),
    ),
}


@pytest.mark.parametrize("what", FITS)
def test_change_that_fits_is_no_finding(what: str) -> None:
    assert problems(*FITS[what]) == []


def test_keyword_without_a_rule_is_a_finding() -> None:
    assert misfits({"type": "string"}, {"type": "string", "contentEncoding": "base64"})
    assert misfits({"not": {"type": "string"}}, {"not": {"type": "integer"}})
    same = {"type": "string", "contentEncoding": "base64"}
    assert misfits(same, same) == []


@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        ({"type": "string"}, {"format": "date"}, ["payload: format date is read"]),
        ({"not": {}}, {"type": "integer"}, []),
        ({"type": "integer"}, {"type": "string", "minLength": 3}, ["integer is written"]),
        ({"const": "b"}, {"enum": ["a"], "minLength": 3}, ["values that are not read: 'b'"]),
        ({"const": True}, {"enum": [1]}, ["values that are not read: True"]),
        ({"const": "a"}, {"type": "string", "pattern": "b"}, ["pattern cannot be compared"]),
        ({"type": "object"}, {"properties": {"a": True}, "required": ["a"]}, ["a: is required"]),
        ({"properties": {"a": {"type": "null"}}}, {"properties": {"a": False}}, ["payload.a: not"]),
        ({"properties": {"a": {"type": "null"}}}, {"properties": {"a": True}}, []),
        ({"type": "null"}, {"anyOf": [False, True]}, []),
        (
            {"type": "integer", "minimum": 3},
            {"type": "integer", "minimum": 1, "exclusiveMinimum": 5},
            ["exclusiveMinimum 5 is read"],
        ),
        (
            {"type": "integer", "minimum": 3, "exclusiveMinimum": 5},
            {"type": "integer", "exclusiveMinimum": 5},
            [],
        ),
    ],
)
def test_schema_of_another_producer_is_compared(
    writer: Any, reader: Any, expected: list[str]
) -> None:
    found = [str(misfit) for misfit in misfits(writer, reader)]
    assert len(found) == len(expected), found
    assert all(part in line for part, line in zip(expected, found, strict=True)), found


SCALARS: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "integer"}, st.integers(-20, 20)),
    ({"type": "integer", "minimum": 3}, st.integers(3, 20)),
    ({"type": "integer", "exclusiveMinimum": 3, "maximum": 9}, st.integers(4, 9)),
    ({"type": "number"}, st.floats(-20, 20)),
    ({"type": "number", "maximum": 9}, st.floats(-20, 9)),
    ({"type": "string"}, st.text("ab", max_size=4)),
    ({"type": "string", "minLength": 2}, st.text("ab", min_size=2, max_size=4)),
    ({"type": "string", "maxLength": 1}, st.text("ab", max_size=1)),
    ({"enum": ["a", "ab", 3]}, st.sampled_from(["a", "ab", 3])),
    ({"const": "a"}, st.just("a")),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "null"}, st.none()),
    ({"type": ["string", "null"]}, st.none() | st.text("ab", max_size=3)),
    ({}, st.sampled_from([None, True, 1, "a", [1], {"a": 1}])),
]


@st.composite
def schemas(draw: Any, depth: int = 2) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    """Draw a schema, and the strategy of the values that its writer writes."""
    kind = draw(st.sampled_from(["scalar", "object", "array", "union", "mapping"]))
    if depth == 0 or kind == "scalar":
        return draw(st.sampled_from(SCALARS))
    part = schemas(depth=depth - 1)
    if kind == "union":
        found = draw(st.lists(part, min_size=1, max_size=3))
        return {"anyOf": [s for s, _ in found]}, st.one_of(*(v for _, v in found))
    if kind == "array":
        (inner, values), most = draw(part), draw(st.sampled_from([None, 1]))
        schema = {"type": "array", "items": inner}
        return (
            schema if most is None else schema | {"maxItems": most},
            st.lists(values, max_size=2 if most is None else most),
        )
    if kind == "mapping":
        inner, values = draw(part)
        return (
            {"type": "object", "additionalProperties": inner},
            st.dictionaries(st.sampled_from("abc"), values, max_size=2),
        )
    found_fields = draw(st.dictionaries(st.sampled_from("abc"), part, max_size=3))
    required = [name for name in found_fields if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {name: s for name, (s, _) in found_fields.items()},
        "required": required,
    }
    values_of = {name: v for name, (_, v) in found_fields.items()}
    return (
        schema | draw(st.sampled_from([{}, {"additionalProperties": False}])),
        st.fixed_dictionaries(
            {name: values_of[name] for name in required},
            optional={name: v for name, v in values_of.items() if name not in required},
        ),
    )


@settings(max_examples=400, deadline=None)
@given(st.data(), schemas(), schemas())
def test_reader_without_misfits_accepts_all_that_is_written(
    data: st.DataObject, writer: Any, reader: Any
) -> None:
    (written, values), (read, _) = writer, reader
    assert misfits(written, written) == []
    if not misfits(written, read):
        jsonschema.validate(data.draw(values), read, cls=jsonschema.Draft202012Validator)
