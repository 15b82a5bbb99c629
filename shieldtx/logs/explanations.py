"""Errors that an operator can fix, as one line: for logs, and for the reports of commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, NoSuchModuleError, OperationalError

from shieldtx.domain.reasons import message_of
from shieldtx.errors import ConfigurationError, ShieldTxError
from shieldtx.logs.databases import Database, database_of
from shieldtx.logs.text import printable

_POOLER: Final = "with PgBouncer, set SHIELDTX_DATABASE_POOLER=transaction"
_ADVICE: Final = {
    "unsupported startup parameter": _POOLER,
    'prepared statement "_pg3_': _POOLER,
    "read-only transaction": "SHIELDTX_DATABASE_URL leads to a server that is not the primary",
}
"""Remedies of errors, by a part of their text."""
_NO_RIGHT: Final = "42501"
"""The SQLSTATE of PostgreSQL for a missing permission."""
_BAD_OPTION: Final = re.compile(r"invalid connection option|invalid \w+ value: \"")
"""How libpq refuses an option of a URL, before it connects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One line without secrets or line breaks."""

    line: str
    is_setting: bool = False
    """Whether a setting, a name or an argument is wrong, so that a retry fails as well."""


def explanation_of(error: BaseException | None) -> Explanation | None:
    """Return the line about an error; None for a defect, which needs its traceback."""
    match error:
        case ShieldTxError():
            return _explanation(str(error), is_setting=isinstance(error, ConfigurationError))
        case DBAPIError():
            return _of_database(error)
        case NoSuchModuleError():
            return _explanation(f"SHIELDTX_DATABASE_URL: {error}", is_setting=True)
        case ImportError() if "psycopg" in (error.name or "") or "libpq" in str(error):
            line = f"psycopg cannot be used ({error}): pip install 'shieldtx[binary]'"
            return _explanation(line, is_setting=True)
    return None


def _of_database(error: DBAPIError) -> Explanation:
    database = database_of(error)
    where = f"{database.named}: " if database else ""
    # A driver's error may have a line for each server that it has tried.
    lines = (" ".join(line.split()) for line in message_of(error).splitlines())
    message = "; ".join(line for line in lines if line).replace(":; ", ": ")
    if getattr(error.orig, "sqlstate", None) is None and _BAD_OPTION.search(str(error.orig)):
        return _explanation(f"{where or 'SHIELDTX_DATABASE_URL: '}{message}", is_setting=True)
    is_unusable = isinstance(error, OperationalError | InterfaceError)
    problem = "the database cannot be used" if is_unusable else "the database refused a statement"
    return _explanation(f"{where}{problem}: {message}{_advice(error, database)}")


def _advice(error: DBAPIError, database: Database | None) -> str:
    if getattr(error.orig, "sqlstate", None) == _NO_RIGHT:
        role = database.role if database and database.role else "the role of the URL"
        return f" ({role} needs a right: grant it what examples/deploy/grants.sql lists)"
    message = str(error.orig)
    return next((f" ({advice})" for sign, advice in _ADVICE.items() if sign in message), "")


def _explanation(text: str, *, is_setting: bool = False) -> Explanation:
    return Explanation(line=printable(" ".join(text.split())), is_setting=is_setting)
