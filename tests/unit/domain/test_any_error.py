"""Any error has a reason and a traceback, and neither quotes a row."""

from __future__ import annotations

import json
import sqlite3
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError
from sqlalchemy.exc import IntegrityError, PendingRollbackError, StatementError

from shieldtx.domain.reasons import loggable, message_of, reason_of

CARD = "4111-SECRET"


class Pg8000Error(Exception):
    __module__ = "pg8000.exceptions"


class AsyncpgError(Exception):
    __module__ = "asyncpg.exceptions"
    sqlstate = "23505"
    constraint_name = "pay_pkey"
    detail = f"Key (card)=({CARD})"

    def __str__(self) -> str:
        return f"{self.args[0]}\nDETAIL:  {self.detail}"


class DerivedError(psycopg.Error):
    """An application's own error, derived from a driver's."""

    def __init__(self, *, card: str) -> None:
        super().__init__("cannot book")
        self.card = card


class NeedsMore(Exception):
    def __init__(self, order: int, *, why: str) -> None:
        super().__init__(f"{order}: {why}")
        self.order = order


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoText(Exception):
    def __str__(self) -> str:
        return 1  # type: ignore[return-value]  # noqa: PLE0307  under test


class SaysMissing(Exception):
    def __str__(self) -> str:
        return str(self.missing)

    def __getattr__(self, name: str) -> Any:
        raise (LookupError if name == "missing" else AttributeError)(name)


class Slotted(Exception):
    __slots__ = ("card",)


class Sealed(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("sealed")


class SealedLinks(Exception):
    @property
    def __cause__(self) -> None:  # type: ignore[override]
        return None


@dataclass(frozen=True)
class Frozen(Exception):
    order: int


@dataclass
class Unhashable(Exception):  # noqa: PLW1641  under test
    order: int

    def __eq__(self, other: object) -> bool:
        raise TypeError("no comparison")


class CannotBeMade(Exception):
    made = False

    def __new__(cls, *args: Any) -> Self:
        if cls.made:
            raise TypeError("made once")
        return super().__new__(cls, *args)


class NoSubclasses(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


class TypedGroup(ExceptionGroup[Exception]):
    """A group with a constructor of its own, as in the documentation of Python."""

    def __new__(cls, errors: list[Exception], code: int) -> Self:
        made = super().__new__(cls, f"code {code}", errors)
        made.code = code
        return made

    code: int


class OddNote:
    def __str__(self) -> str:
        raise RuntimeError("no note")


class Card(BaseModel):
    number: int


def misfit() -> ValidationError:
    try:
        Card.model_validate({"number": CARD, CARD: 1})
    except ValidationError as error:
        return error
    raise AssertionError


def cannot_be_made() -> Exception:
    CannotBeMade.made = False
    try:
        return CannotBeMade("x")
    finally:
        CannotBeMade.made = True


QUOTING: list[Callable[[], BaseException]] = [
    lambda: Pg8000Error({"C": "23505", "M": "duplicate key", "D": f"Key ({CARD})"}),
    lambda: Pg8000Error({"C": "22P02", "M": f'invalid: "{CARD}"'}),
    lambda: AsyncpgError("duplicate key"),
    lambda: psycopg.DataError(f"date too large: '{CARD}'"),
    lambda: DerivedError(card=CARD),
    lambda: IntegrityError("INSERT", {"card": CARD}, AsyncpgError("duplicate key")),
    lambda: StatementError("no", "INSERT", {"card": CARD}, ValueError("no date")),
    lambda: PendingRollbackError(f"rolled back. Original exception was: {CARD}"),
    misfit,
    lambda: PydanticSerializationError(f"Error calling function `mask`: ValueError: {CARD}"),
]
"""Errors that quote rows or payloads."""

ODD: list[Callable[[], BaseException]] = [
    lambda: NeedsMore(1, why="why"),
    lambda: Textless("x"),
    lambda: NoText("x"),
    lambda: SaysMissing("x"),
    lambda: Slotted("x"),
    lambda: Sealed("x"),
    lambda: SealedLinks("x"),
    lambda: Frozen(1),
    lambda: Unhashable(1),
    cannot_be_made,
    lambda: NoSubclasses("x"),
    lambda: KeyError("k"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    lambda: OSError(2, "No such file", "/x"),
    lambda: SystemExit(3),
    KeyboardInterrupt,
    lambda: SyntaxError("bad", ("f.py", 1, 1, "x x", 1, 3)),
    lambda: sqlite3.OperationalError("database is locked"),
]
"""Errors of applications and of Python, which quote nothing of their own."""

WRITTEN: list[Callable[[str], str]] = [str, repr, ascii, json.dumps]
CUTS = st.none() | st.integers(0, 300)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  any error of its class
        return "?"


@st.composite
def errors(draw: st.DrawFn) -> BaseException:
    """Draw an error that is linked with others in any way, rings of causes among them."""
    made: list[BaseException] = []
    for _ in range(draw(st.integers(1, 6))):
        made.append(draw(one_more(made)))
    for error in made:
        for link in draw(st.sets(st.sampled_from(["__cause__", "__context__"]))):
            if getattr(error, link, None) is None:
                BaseException.__dict__[link].__set__(error, draw(st.sampled_from(made)))
        if draw(st.booleans()):
            note = f"note on {text_of(error)}"
            notes = st.sampled_from([[note], [OddNote(), note, None], None, 1])
            vars(error)["__notes__"] = draw(notes)
    return made[-1]


def one_more(made: list[BaseException]) -> st.SearchStrategy[BaseException]:
    """Return a strategy of errors, some of which contain those of `made`."""
    values = st.lists(st.text() | st.integers() | st.none(), max_size=3)
    kinds = [
        st.sampled_from(QUOTING).map(lambda make: make()),
        st.sampled_from(ODD).map(lambda make: make()),
        values.map(lambda args: ValueError(*args)),
    ]
    if made:
        members = st.lists(st.sampled_from(made), min_size=1, max_size=4)
        kinds += [
            st.builds(says, st.sampled_from(made), st.sampled_from(WRITTEN), CUTS),
            members.map(lambda them: BaseExceptionGroup(text_of(them[0]), them)),
            members.map(lambda them: TypedGroup(only_exceptions(them), 7)),
        ]
    return st.one_of(kinds)


def says(quoted: BaseException, written: Callable[[str], str], end: int | None) -> BaseException:
    """Raise one error from another, whose text its own text contains, whole or cut off."""
    error = RuntimeError(f"cannot: {written(text_of(quoted))[:end]}")
    error.__cause__ = quoted
    return error


def only_exceptions(members: list[BaseException]) -> list[Exception]:
    return [each for each in members if isinstance(each, Exception)] or [KeyError("k")]


def seen_of(error: BaseException) -> list[object]:
    """Return what a caller may see of an error and of its linked errors."""
    seen: list[object] = []
    agenda = [error]
    known = set[int]()
    while agenda:
        each = agenda.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        links = [getattr(each, name) for name in ("__cause__", "__context__")]
        members = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        seen.append((id(each), repr(each.args), text_of(each), *map(id, links), *map(id, members)))
        seen.append((repr(vars(each).get("__notes__")), each.__suppress_context__))
        agenda += [link for link in (*links, *members) if link is not None]
    return seen


@given(errors())
def test_reason_names_the_class_and_quotes_no_row(error: BaseException) -> None:
    before = seen_of(error)
    reason = reason_of(error)
    assert reason.startswith(f"{type(error).__name__}: ")
    assert reason.endswith(message_of(error))
    assert CARD not in reason
    assert seen_of(error) == before


@given(errors())
def test_logged_traceback_shows_the_chain_and_quotes_no_row(error: BaseException) -> None:
    before = seen_of(error)
    shown = loggable(error)
    logged = "".join(traceback.format_exception(shown))
    assert CARD not in logged, logged
    assert type(shown).__name__ == type(error).__name__
    assert seen_of(error) == before
