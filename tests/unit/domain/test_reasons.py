"""The reason of a database error contains no data of rows, whatever driver raised the error."""

from __future__ import annotations

import ast
import json
import sqlite3
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Literal, Self

import psycopg
import pytest
from pydantic import BaseModel, ValidationError
from sqlalchemy import Column, MetaData, Numeric, Table, create_engine, text
from sqlalchemy.exc import IntegrityError, OperationalError, PendingRollbackError, StatementError

import shieldtx
from shieldtx.domain.reasons import loggable, message_of, reason_of

CARD = "4111-SECRET"


class DatabaseError(Exception):
    """An application's own error, which has a name of PEP 249 and does not come from a driver."""


class Pg8000Error(Exception):
    """An error of pg8000's form: one dictionary of the protocol's fields."""

    __module__ = "pg8000.exceptions"


class AsyncpgError(Exception):
    """An error of asyncpg's form: fields, and a text that contains all of them."""

    __module__ = "asyncpg.exceptions"
    sqlstate: str | None = None
    constraint_name: str | None = None
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.args[0]}\nDETAIL:  {self.detail}"


class AdaptedError(Exception):
    """An error as SQLAlchemy adapts those of asyncpg: all in the text, the fields in the cause."""

    __module__ = "sqlalchemy.dialects.postgresql.asyncpg"


class MySqlError(Exception):
    __module__ = "pymysql.err"


@pytest.fixture
def pymysql(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the module globals of PEP 249, by which drivers are recognized."""
    package = ModuleType("pymysql")
    package.apilevel = "2.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pymysql", package)


def pg8000_error() -> Exception:
    fields = {"S": "ERROR", "C": "23505", "M": "duplicate key", "n": "pay_pkey", "D": f"({CARD})"}
    return Pg8000Error(fields)


def asyncpg_error(message: str = "duplicate key", sqlstate: str = "23505") -> Exception:
    error = AsyncpgError(message)
    error.sqlstate, error.constraint_name, error.detail = sqlstate, "pay_pkey", f"Key ({CARD})"
    return error


def adapted_error() -> Exception:
    cause = asyncpg_error()
    error = AdaptedError(f"<class 'UniqueViolationError'>: {cause}")
    error.__cause__ = cause
    return error


def wrapped(error: Exception) -> Exception:
    return IntegrityError("INSERT INTO pay VALUES (:card)", {"card": CARD}, error)


SHOWN = "duplicate key (SQLSTATE 23505, constraint pay_pkey)"


@pytest.mark.parametrize("raw", [pg8000_error, asyncpg_error, adapted_error])
def test_message_sqlstate_and_constraint_are_left(raw):
    assert message_of(raw()) == SHOWN
    assert reason_of(wrapped(raw())) == f"IntegrityError: {SHOWN}"


@pytest.mark.parametrize(
    ("message", "sqlstate"),
    [
        (f'invalid input syntax for type integer: "a "{CARD}""', "22P02"),
        (f"ungültige Eingabesyntax für Typ integer: »{CARD}«", "22P02"),
        (f"syntaxe en entrée invalide pour le type integer : « {CARD} »", "22P02"),
        (f"invalid input for query argument $1: '{CARD}' (expected int)", "22000"),
        (f"the card {CARD} is locked", "P0001"),
        (f"ValueError: {CARD}", "38000"),
    ],
)
def test_primary_message_that_may_quote_a_value_is_left_out(message: str, sqlstate: str):
    error = asyncpg_error(message, sqlstate)
    kept = f"AsyncpgError, whose text is left out (SQLSTATE {sqlstate}, constraint pay_pkey)"
    assert message_of(error) == kept
    quoting = RuntimeError(f"cannot book: {message}")
    quoting.__cause__ = error
    assert CARD not in reason_of(quoting)


def test_error_raised_by_a_function_is_left_out():
    fields = {"C": "23514", "M": f"the card {CARD} is locked", "R": "exec_stmt_raise"}
    assert message_of(Pg8000Error(fields)) == (
        "Pg8000Error, whose text is left out (SQLSTATE 23514)"
    )


def test_data_error_of_the_driver_itself_is_left_out():
    error = psycopg.DataError(f"date too large (after year 10K): '{CARD}'")
    assert reason_of(wrapped(error)) == "IntegrityError: DataError, whose text is left out"


@pytest.mark.usefixtures("pymysql")
def test_error_of_an_unknown_driver_keeps_its_number_only():
    error = MySqlError(1062, f"Duplicate entry '{CARD}' for key 'pay.PRIMARY'")
    assert message_of(error) == "error 1062 of pymysql.err, whose text is left out"


def test_application_error_is_shown_whatever_its_name():
    assert reason_of(DatabaseError("the shelf is empty")) == "DatabaseError: the shelf is empty"


def test_database_error_without_text_changes_no_other_text():
    error = ValueError("the order is unknown")
    error.__context__ = psycopg.DatabaseError()
    assert reason_of(error) == "ValueError: the order is unknown"


def test_sqlite_names_columns_and_no_values():
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("CREATE TABLE pay (card TEXT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO pay VALUES (:card)"), {"card": CARD})
        with pytest.raises(IntegrityError) as failed:
            connection.execute(text("INSERT INTO pay VALUES (:card)"), {"card": CARD})
    assert reason_of(failed.value) == "IntegrityError: UNIQUE constraint failed: pay.card"


def test_error_of_a_failed_session_omits_the_original_error():
    error = PendingRollbackError(
        f"This Session's transaction has been rolled back. Original exception was: Key ({CARD})"
    )
    assert message_of(error) == "This Session's transaction has been rolled back."


def test_unbindable_parameters_are_left_out():
    error = StatementError("no", "INSERT INTO pay VALUES (:c)", {"c": CARD}, ValueError("no date"))
    assert message_of(error) == "ValueError: no date"


@pytest.mark.parametrize("rows", [{"n": CARD}, [{"n": CARD}, {"n": CARD}]], ids=["one", "many"])
def test_python_error_about_an_unbindable_value_is_left_out(rows) -> None:
    pay = Table("pay", MetaData(), Column("n", Numeric))
    with (
        create_engine("sqlite://").connect() as connection,
        pytest.raises(StatementError) as failed,
    ):
        connection.execute(pay.insert(), rows)
    assert CARD in str(failed.value.orig)
    assert "could not convert string to float: '...'" in reason_of(failed.value)
    said = reason_of(failed.value) + "".join(traceback.format_exception(loggable(failed.value)))
    assert CARD not in said


@pytest.mark.parametrize("parameters", [(CARD,), [(CARD,)], {"c": CARD}, None, 7])
def test_parameters_may_have_any_form(parameters) -> None:
    error = StatementError("no", "INSERT", parameters, ValueError(f"{CARD} is no date"))
    is_known = parameters not in (None, 7)
    assert message_of(error) == f"ValueError: {'...' if is_known else CARD} is no date"


def test_error_outside_of_databases_is_shown_unchanged():
    error = ValueError("the shelf is empty")
    assert reason_of(error) == "ValueError: the shelf is empty"
    assert loggable(error) is error


class Card(BaseModel):
    number: int
    kind: Literal["debit"] = "debit"


def misfit() -> ValidationError:
    try:
        Card.model_validate({"number": CARD, "kind": CARD})
    except ValidationError as error:
        return error
    raise AssertionError


def test_model_misfit_keeps_places_and_no_values() -> None:
    error = misfit()
    assert CARD in str(error)
    expected = "Card does not fit: number: int_parsing, kind: literal_error"
    assert reason_of(error) == f"ValidationError: {expected}"
    wrapping = RuntimeError(f"cannot book: {error}")
    wrapping.__cause__ = error
    assert reason_of(wrapping) == f"RuntimeError: cannot book: {expected}"
    logged = "".join(traceback.format_exception(loggable(wrapping)))
    assert CARD not in logged
    assert expected in logged


class Unprintable(Exception):
    def __str__(self) -> str:
        return str(self.args[0].missing)


def test_error_without_text_has_a_reason() -> None:
    error = Unprintable("x")
    assert reason_of(error) == "Unprintable: (its text cannot be made: AttributeError)"
    assert loggable(error) is error
    error.__cause__ = misfit()
    assert "Unprintable" in "".join(traceback.format_exception(loggable(error)))


def fail(error: Exception) -> None:
    raise error


def failing(kind: str) -> None:
    try:
        fail(pg8000_error() if kind == "own text" else wrapped(adapted_error()))
    except Exception as error:
        error.add_note(f"the note says {error}")
        if kind == "alone":
            raise
        if kind == "group":
            raise ExceptionGroup(f"several: {error}", [error, KeyError("k")]) from None
        if kind == "context":
            raise RuntimeError(f"cannot book: {error}")  # noqa: B904  so that it is the context
        if kind == "own text":
            raise OddError(CARD, error) from error
        raise RuntimeError(f"cannot book: {error}") from error


class OddError(Exception):
    def __init__(self, card: str, error: Exception) -> None:
        super().__init__(card, error)
        self.error = error

    def __str__(self) -> str:
        return f"odd: {self.error}"


@pytest.mark.parametrize("kind", ["alone", "cause", "context", "group", "own text"])
def test_traceback_has_places_but_no_row_values(kind):
    with pytest.raises(Exception) as raised:  # noqa: PT011  of several kinds
        failing(kind)
    error = raised.value
    logged = "".join(traceback.format_exception(loggable(error)))
    assert CARD not in logged
    assert CARD not in reason_of(error)
    assert "in failing" in logged
    assert SHOWN in logged
    assert type(loggable(error)).__name__ == type(error).__name__
    assert CARD in str(error) or kind == "group", "the error itself stays as it is"


def test_logged_error_keeps_its_class_and_its_chain():
    error = OperationalError("SELECT 1", {}, sqlite3.OperationalError("database is locked"))
    error.__cause__ = error.orig
    copy = loggable(error)
    assert isinstance(copy, OperationalError)
    assert isinstance(copy.__cause__, sqlite3.OperationalError)
    assert str(copy.orig) == "database is locked"


def test_circular_contexts_of_errors_end():
    one, other = wrapped(pg8000_error()), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert loggable(other).__context__.__context__ is not None  # type: ignore[union-attr]


class TextlessDriverError(psycopg.Error):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class FieldlessDriverError(psycopg.Error):
    @property
    def diag(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error",
    [
        TextlessDriverError(CARD),
        FieldlessDriverError(CARD),
        StatementError("m", "SELECT 1", {}, Unprintable("x")),
    ],
    ids=["text", "fields", "orig"],
)
def test_unreadable_driver_error_has_a_reason(error: Exception) -> None:
    reason = reason_of(error)
    assert reason.startswith(type(error).__name__)
    assert CARD not in reason
    assert CARD not in "".join(traceback.format_exception(loggable(error)))


def test_long_chain_of_errors_keeps_its_first_and_last() -> None:
    error: Exception = asyncpg_error()
    for n in range(2000):
        following = ValueError(f"error {n}")
        following.__context__ = error
        error = following
    logged = "".join(traceback.format_exception(loggable(error)))
    assert "error 1999" in logged
    assert "... 1,961 errors between" in logged
    assert "AsyncpgError: duplicate key" in logged
    assert CARD not in logged


@pytest.mark.parametrize("written", [repr, json.dumps], ids=["repr", "json"])
def test_database_error_quoted_with_escapes_is_reduced(written) -> None:
    cause = AsyncpgError("duplicate key")
    cause.detail = f'Key (O\'Brien "{CARD}" \\ café\n)'
    error = RuntimeError(f"cannot book: {written(str(cause))} {written(cause.detail)}")
    error.__cause__ = cause
    assert CARD not in reason_of(error)


def test_database_error_in_a_doubly_quoted_error_is_reduced() -> None:
    cause = wrapped(asyncpg_error())
    nearer = RuntimeError(f"cannot book: {str(cause)!r}")
    nearer.__cause__ = cause
    error = RuntimeError(f"cannot ship: {nearer!r} {json.dumps(str(nearer))}")
    error.__cause__ = nearer
    assert CARD in str(error)
    assert CARD not in reason_of(error)
    assert CARD not in "".join(traceback.format_exception(loggable(error)))


class SaysItsCause(Exception):
    def __str__(self) -> str:
        return f"{self.args[0]}: {self.__dict__['error']}"


def test_error_whose_class_adds_a_quoted_text_is_reduced() -> None:
    error = SaysItsCause("cannot book")
    error.error = error.__cause__ = asyncpg_error()  # type: ignore[attr-defined]
    logged = "".join(traceback.format_exception(loggable(error)))
    assert CARD not in logged
    assert f"SaysItsCause: cannot book: {SHOWN}" in logged


def test_driver_errors_that_cause_each_other_are_reduced() -> None:
    one, other = asyncpg_error(), pg8000_error()
    one.__cause__, other.__cause__ = other, one
    assert reason_of(one) == f"AsyncpgError: {SHOWN}"
    assert CARD not in "".join(traceback.format_exception(loggable(one)))


class OrdersFailed(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception], shop: int) -> Self:
        return super().__new__(cls, f"orders of shop {shop} failed", errors)


def test_group_keeps_the_name_of_its_class() -> None:
    error = OrdersFailed([wrapped(asyncpg_error()), KeyError("k")], 7)
    logged = "".join(traceback.format_exception(loggable(error)))
    assert "OrdersFailed: orders of shop 7 failed (2 sub-exceptions)" in logged
    assert CARD not in logged


class WithoutLinks(Exception):
    __cause__ = property(lambda _: None)  # type: ignore[assignment]


def test_error_that_cannot_be_linked_is_logged() -> None:
    error = wrapped(asyncpg_error())
    error.__context__ = WithoutLinks("x")
    assert "WithoutLinks: x" in "".join(traceback.format_exception(loggable(error)))


WITHOUT_DATABASE = {"brokers", "embedded"}


def raw_tracebacks(module: Path) -> list[str]:
    """Return where a module logs an error unreduced, with all texts of its chain."""
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            is_log = isinstance(node.func.value, ast.Name) and node.func.value.id == "log"
            value = given.get("exc_info")
            is_raw = isinstance(value, ast.Constant) and value.value is True
            if is_log and (is_raw or (node.func.attr == "exception" and value is None)):
                found.append(f"{module.name}:{node.lineno}")
    return found


def test_every_module_logs_reduced_errors_only():
    root = Path(shieldtx.__file__).parent
    modules = [
        m for m in root.rglob("*.py") if m.relative_to(root).parts[0] not in WITHOUT_DATABASE
    ]
    assert [place for module in modules for place in raw_tracebacks(module)] == []
