"""Whatever part of a database error another error quotes, its text contains no value of a row."""

from __future__ import annotations

import json
import textwrap
import traceback
from collections.abc import Callable

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import IntegrityError

from shieldtx.domain.quotes import Quotes
from shieldtx.domain.reasons import loggable, reason_of

VALUE = "KWVXQZJYMBHGPFLTDRNC"
"""No three of its letters are in any other text."""
SHOWN = "duplicate key (SQLSTATE 23505, constraint pay_pkey)"


class UniqueViolation(Exception):
    """An error of asyncpg's form: fields, and a text that contains all of them."""

    __module__ = "asyncpg.exceptions"
    sqlstate = "23505"
    constraint_name = "pay_pkey"

    def __init__(self, detail: str) -> None:
        super().__init__("duplicate key")
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.args[0]}\nDETAIL:  {self.detail}"


class Card(BaseModel):
    number: int
    count: int = 0


def of_statement(value: str) -> Exception:
    cause = UniqueViolation(f"Key (iban, owner)=({value}, Alice) already exists.")
    return IntegrityError("INSERT INTO pay VALUES (:card, :id)", {"card": value, "id": 1}, cause)


def of_driver(value: str) -> Exception:
    return UniqueViolation(f"Key (iban, owner)=({value}, Alice) already exists.")


def of_client(value: str) -> Exception:
    return psycopg.DataError(f"date too large (after year 10K): '{value}'")


def of_model(value: str) -> Exception:
    try:
        Card.model_validate({"number": value, "count": value})
    except ValidationError as error:
        return error
    raise AssertionError


QUOTED = [of_statement, of_driver, of_client, of_model]
WRITTEN: list[Callable[[str], str]] = [
    str,
    repr,
    ascii,
    json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: " ".join(text.split()),
    lambda text: textwrap.fill(text, 30, break_long_words=False),
    lambda text: textwrap.shorten(text, 140),
    lambda text: textwrap.indent(text, "    | "),
    lambda text: "; ".join(text.splitlines()),
]
"""Ways to write a text in another."""


def quoting(text: str, cause: BaseException) -> Exception:
    error = RuntimeError(f"cannot store: {text}...")
    error.__cause__ = cause
    error.add_note(f"while storing {text}")
    return error


def leaked(text: str, longest: int = 2) -> list[str]:
    """Return the pieces of the value in a text that are one character longer than permitted."""
    size = longest + 1
    pieces = (VALUE[i : i + size] for i in range(len(VALUE) - size + 1))
    return [piece for piece in pieces if piece in text]


def said_of(error: BaseException) -> str:
    return reason_of(error) + "".join(traceback.format_exception(loggable(error)))


@pytest.mark.parametrize("make", QUOTED)
def test_truncated_quote_contains_no_value(make: Callable[[str], Exception]) -> None:
    cause = make(VALUE)
    for end in range(len(str(cause)) + 1):
        assert not leaked(reason_of(quoting(str(cause)[:end], cause))), end


def test_truncated_quote_keeps_the_reason() -> None:
    cause = of_statement(VALUE)
    assert reason_of(quoting(str(cause)[:100], cause)) == f"RuntimeError: cannot store: {SHOWN}..."
    twice = f"{str(cause)[:100]} and {cause}"
    assert reason_of(quoting(twice, cause)) == f"RuntimeError: cannot store: {SHOWN} and ......"


@pytest.mark.parametrize(
    "text",
    [
        "Key (iban, owner)=(" + VALUE,
        f"({VALUE}, Alice) already exists.",
        f"owner)=({VALUE}",
        f"[parameters: {{'card': '{VALUE}",
    ],
)
def test_line_of_an_error_or_a_part_of_one_is_left_out(text: str) -> None:
    assert not leaked(said_of(quoting(text, of_statement(VALUE))))


@pytest.mark.parametrize("text", [lambda e: e.json(), lambda e: str(e.errors())])
@pytest.mark.parametrize("end", [60, 120, 180, None])
def test_pydantic_errors_as_json_or_list_are_left_out(text, end) -> None:
    cause = of_model(VALUE)
    assert isinstance(cause, ValidationError)
    assert not leaked(said_of(quoting(text(cause)[:end], cause)))


surroundings = st.text(st.characters(exclude_categories=["Lu"]), max_size=6) | st.sampled_from(
    ["'", '"', "\\", "\n", "é'", "\\n", '", "', "O'Brien "]
)


@given(
    st.sampled_from(QUOTED),
    surroundings,
    surroundings,
    st.lists(st.sampled_from(WRITTEN), max_size=3),
    st.data(),
)
def test_no_value_is_left_in_any_escaped_and_truncated_quote(make, before, after, written, data):
    cause = make(f"{before}{VALUE}{after}")
    text = str(cause)
    for write in written:
        text = write(text)[: data.draw(st.none() | st.integers(0, 400))]
    assert not leaked(said_of(quoting(text, cause))), text


@given(st.sampled_from(QUOTED), st.sampled_from(WRITTEN), st.integers(0, 300), st.integers(0, 60))
def test_no_part_of_a_value_is_left_in_any_piece_of_a_quote(make, write, start, size) -> None:
    words = f"{VALUE[:7]} {VALUE[7:14]} {VALUE[14:]}"
    cause = make(words)
    piece = write(str(cause))[start : start + size]
    text = reason_of(quoting(piece, cause)).replace(" ", "")
    assert not leaked(text, longest=10), piece


def test_permitted_text_and_single_words_stay() -> None:
    order = "01890a5d-ac96-774b-bcce-b302099a8057"
    cause = of_statement(order)
    text = f"order {order} cannot be stored in customer_accounts: duplicate key"
    assert reason_of(quoting(text, cause)) == f"RuntimeError: cannot store: {text}..."


def test_error_about_a_misfit_may_quote_permitted_messages() -> None:
    error = quoting("payload.count: Input should be a valid integer", of_model(VALUE))
    assert "payload.count: Input should be a valid integer" in reason_of(error)


@given(st.text(max_size=40))
def test_text_without_quoted_errors_stays_unchanged(text: str) -> None:
    assert Quotes({}, []).reduced(text) == text


@given(st.text(max_size=40), st.lists(st.sampled_from(WRITTEN[:5]), max_size=3))
def test_whole_quote_is_found_at_any_level_of_escaping(value: str, written) -> None:
    text = quoted = f"<4711 {value} 4711>"
    for write in written:
        text = write(text)
    assert "4711" not in Quotes({quoted: "x"}, []).reduced(f"before {text} after")
