"""Texts of errors for logs, tables and topics, without the contents of rows or payloads."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, ValidationError
from sqlalchemy.exc import PendingRollbackError, StatementError

from shieldtx.domain.error_copies import LONGEST_CHAIN, copy_of, ends_of
from shieldtx.domain.misfits import (
    message_of_misfit,
    message_of_unwritten,
    names_of_model,
    place_of,
)
from shieldtx.domain.quotes import Quotes

WITH_TRACEBACK: Final = {"with_traceback": True}
"""`extra` of a log entry whose traceback is shown even where its error explains itself."""

_QUOTING: Final = ("22", "38", "39", "P0")
"""Classes of SQLSTATE whose primary message may quote a value: data, and errors of functions."""
_RAISED: Final = "exec_stmt_raise"
"""The server's function that raises the errors of PL/pgSQL functions, under any SQLSTATE."""
_POSTGRESQL: Final = {"psycopg", "psycopg2", "asyncpg", "pg8000"}
_ADAPTED: Final = "sqlalchemy.dialects."
"""These modules of SQLAlchemy have classes that stand for those of asynchronous drivers."""
_MISFITS: Final = 3
"""How many parts that do not fit a model are named."""


def reason_of(error: BaseException) -> str:
    """Return an error's class and message, without what database errors quote of rows."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """Return an error's message, without what database errors quote of rows.

    A database error keeps its primary message, SQLSTATE and constraint name; where the message may
    quote a value, the name of the driver's class replaces it. pydantic's errors keep the locations
    and kinds of the misfits, without values. Where another error quotes one of its chain, also in
    part, the quote is reduced in the same way.
    """
    text = _summary(error)
    if text is not None:
        return text
    chain = list(_chain(error))
    return _quotes(chain, {id(e): _summary(e) for e in chain}).reduced(_text_of(error))


def _text_of(error: BaseException) -> str:
    """Return an error's own text; a class of the application may fail to make one."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001  whatever its `__str__` raises
        return f"(its text cannot be made: {type(failure).__name__})"


def loggable(error: BaseException) -> BaseException:
    """Return an error whose formatted traceback has the messages that message_of gives.

    The error itself, if it quotes neither rows nor payloads; else a copy, with its chain.
    """
    chain = list(_chain(error))
    summaries = {id(each): _summary(each) for each in chain}
    if all(summary is None for summary in summaries.values()):
        return error
    # Once for the whole chain: any of its errors may quote any other.
    reduced = _quotes(chain, summaries).reduced

    def message(each: BaseException) -> str:
        summary = summaries[id(each)]
        return reduced(_text_of(each)) if summary is None else summary

    return copy_of(chain, reduced, message, lambda each: summaries[id(each)] is not None)


def _summary(error: BaseException) -> str | None:
    """Return the safe text of an error that quotes rows or payloads; None for any other."""
    try:
        summary = _own_summary(error)
        return None if summary is None else str(summary)
    except Exception:  # noqa: BLE001  a driver's error, or one derived from it, may do anything
        return f"{type(error).__qualname__}, its text cannot be read"


def _own_summary(error: BaseException) -> str | None:
    if isinstance(error, ValidationError | PydanticSerializationError):
        return _of_pydantic(error)
    if isinstance(error, PendingRollbackError):
        return str(error).partition(" Original exception was:")[0]
    if isinstance(error, StatementError):
        if error.orig is None:
            return str(error.args[0]) if error.args else ""
        without_parameters = Quotes(dict.fromkeys(_parameters(error), "..."), ()).reduced(
            _text_of(error.orig)
        )
        return _summary(error.orig) or f"{type(error.orig).__name__}: {without_parameters}"
    if not _is_of_driver(error):
        return None
    fields = _fields(error)
    message = f"{fields.condition}, whose text is left out" if fields.quotes else fields.message
    named = [f"SQLSTATE {fields.sqlstate}"] if fields.sqlstate else []
    named += [f"constraint {fields.constraint}"] if fields.constraint else []
    return f"{message} ({', '.join(named)})" if named else message


def _of_pydantic(error: ValidationError | PydanticSerializationError) -> str:
    """Name the parts that do not fit a model, without the values, which pydantic quotes."""
    if isinstance(error, PydanticSerializationError):
        return message_of_unwritten(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    names = names_of_model(error.title)
    places = [f"{place_of(each['loc'], names) or 'value'}: {each['type']}" for each in found]
    more = [f"{len(found) - _MISFITS} more"] if len(found) > _MISFITS else []
    return f"{error.title} does not fit: {', '.join([*places[:_MISFITS], *more])}"


def _is_of_driver(error: BaseException) -> bool:
    """Whether an error's class, or one of its base classes, is a database driver's."""
    return any(_is_of_drivers(kind.__module__) for kind in type(error).__mro__)


def _is_adapted(error: BaseException) -> bool:
    return any(kind.__module__.startswith(_ADAPTED) for kind in type(error).__mro__)


@lru_cache(maxsize=1_000)
def _is_of_drivers(module: str) -> bool:
    """Whether a module is in a package with PEP 249's module globals, or in asyncpg."""
    if module.startswith(_ADAPTED) or module.partition(".")[0] in _POSTGRESQL:
        return True
    packages = accumulate(module.split("."), "{}.{}".format)
    return any(hasattr(sys.modules.get(package), "apilevel") for package in packages)


class _Fields(NamedTuple):
    """The parts of a driver's error."""

    message: str
    condition: str
    """The name of the driver's class, which drivers for PostgreSQL derive from the SQLSTATE."""
    sqlstate: str | None = None
    constraint: str | None = None
    routine: str | None = None
    """The function of the server's source that raised the error."""

    @property
    def quotes(self) -> bool:
        """Whether the message may quote a value, in any language."""
        of_client = self.sqlstate is None and self.condition == "DataError"
        return of_client or self.routine == _RAISED or (self.sqlstate or "").startswith(_QUOTING)


def _fields(error: BaseException) -> _Fields:
    """Return the parts of an error, driver by driver."""
    diag, condition = getattr(error, "diag", None), type(error).__name__
    if primary := getattr(diag, "message_primary", None):
        # psycopg and psycopg2
        sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        constraint = getattr(diag, "constraint_name", None)
        routine = getattr(diag, "source_function", None)
        return _Fields(primary, condition, sqlstate, constraint, routine)
    first = error.args[0] if error.args else ""
    if isinstance(first, dict):
        # pg8000
        message = str(first.get("M", ""))
        return _Fields(message, condition, first.get("C"), first.get("n"), first.get("R"))
    if error.__cause__ is not None and _is_adapted(error) and _is_of_driver(error.__cause__):
        # asyncpg, adapted by SQLAlchemy
        return _fields(error.__cause__)
    if hasattr(error, "constraint_name"):
        # asyncpg
        sqlstate, routine = (
            getattr(error, name, None) for name in ("sqlstate", "server_source_function")
        )
        return _Fields(str(first), condition, sqlstate, error.constraint_name, routine)
    if isinstance(error, sqlite3.Error) or _is_of_postgresql(error):
        # The message comes from the client, or from SQLite, which names columns only.
        return _Fields(str(error).partition("\nDETAIL:")[0], condition)
    # MySQL, for example, puts values into its only message.
    code = f"error {first} " if isinstance(first, int) else ""
    return _Fields(f"{code}of {type(error).__module__}, whose text is left out", condition)


def _is_of_postgresql(error: BaseException) -> bool:
    return not _POSTGRESQL.isdisjoint(map(_root_of, type(error).__mro__))


def _root_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _quotes(chain: Sequence[BaseException], summaries: Mapping[int, str | None]) -> Quotes:
    """Return what other errors of a chain may quote of its errors; `summaries` are by error id."""
    quoted: dict[str, str] = {}
    allowed: list[str] = []
    # The shown errors quote their neighbours; all of a long chain would take too long.
    for error in ends_of(chain, 2 * LONGEST_CHAIN):
        summary = summaries[id(error)]
        if summary is not None:
            quoted |= dict.fromkeys(_details(error), "...")
            quoted |= dict.fromkeys(_texts(error), summary)
            allowed += [summary, *_messages(error)]
    return Quotes(quoted, allowed)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield an error's text, and the longer texts that it was made of."""
    with suppress(Exception):
        yield str(error)
    yield from (each for each in error.args if isinstance(each, str))
    if isinstance(error, ValidationError):
        with suppress(Exception):
            yield error.json()
            yield str(error.errors())


def _messages(error: BaseException) -> list[str]:
    """Return pydantic's messages about misfits, without their values."""
    with suppress(Exception):
        if isinstance(error, ValidationError):
            return [message_of_misfit(each) for each in error.errors(include_input=False)]
    return []


def _details(error: BaseException) -> Iterator[str]:
    """Yield what PostgreSQL quotes of rows in the further fields of an error, and its message."""
    with suppress(Exception):
        yield from _driver_details(error)
    if isinstance(error, StatementError):
        yield from _parameters(error)


def _parameters(error: StatementError) -> Iterator[str]:
    """Yield the parameters of a statement that could not be bound: Python's errors quote them."""
    with suppress(Exception):
        if error.orig is None or _summary(error.orig) is not None:
            return
        rows: list[Any] = error.params if isinstance(error.params, list) else [error.params]
        for row in rows:
            yield from map(str, row.values() if isinstance(row, Mapping) else row)


def _driver_details(error: BaseException) -> Iterator[str]:
    """Yield the same; raises any error that reading a field of a driver's error raises."""
    first = error.args[0] if error.args else None
    fields = _fields(error) if _is_of_driver(error) else None
    diag: Any = getattr(error, "diag", None)
    found = [
        fields.message if fields and fields.quotes else None,
        getattr(diag, "message_detail", None),
        getattr(diag, "context", None),
        getattr(error, "detail", None),
        *((first.get("D"), first.get("W")) if isinstance(first, dict) else ()),
    ]
    yield from (each for each in found if isinstance(each, str))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and all of its causes, contexts, wrapped errors and group members."""
    seen: set[int] = set()
    agenda: list[BaseException | None] = [error]
    while agenda:
        each = agenda.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        agenda += [each.__context__, each.__cause__]
        if isinstance(each, StatementError):
            agenda.append(each.orig)
        if isinstance(each, BaseExceptionGroup):
            agenda += each.exceptions
