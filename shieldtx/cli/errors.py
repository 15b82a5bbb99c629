"""Errors that an operator can fix, as one line and an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, NoSuchModuleError, OperationalError

from shieldtx.cli.output import printable
from shieldtx.domain.reasons import message_of
from shieldtx.errors import ConfigurationError, ShieldTxError

FAILED: Final = 1
MISCONFIGURED: Final = 2
"""Also the exit status of an invalid command line."""


_POOLER: Final = "with PgBouncer, set SHIELDTX_DATABASE_POOLER=transaction"
_ADVICE: Final = {
    "unsupported startup parameter": _POOLER,
    'prepared statement "_pg3_': _POOLER,
    "read-only transaction": "SHIELDTX_DATABASE_URL leads to a server that is not the primary",
}
"""Remedies of errors, by a part of their text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One line without secrets or line breaks, and an exit status."""

    line: str
    status: int


def failure_of(error: BaseException | None) -> Failure | None:  # noqa: PLR0911  one for each kind
    """Return the report of an error; None for a defect, which needs its traceback."""
    match error:
        case ShieldTxError():
            is_setting = isinstance(error, ConfigurationError)
            return _failure(str(error), MISCONFIGURED if is_setting else FAILED)
        case OperationalError() | InterfaceError():
            return _failure(
                f"the database cannot be used: {message_of(error)}{_advice(error)}", FAILED
            )
        case DBAPIError():
            line = f"the database refused a statement: {message_of(error)}{_advice(error)}"
            return _failure(line, FAILED)
        case NoSuchModuleError():
            return _failure(f"SHIELDTX_DATABASE_URL: {error}", MISCONFIGURED)
        case ImportError() if "psycopg" in (error.name or "") or "libpq" in str(error):
            line = f"psycopg cannot be used ({error}): pip install 'shieldtx[binary]'"
            return _failure(line, MISCONFIGURED)
        case UnicodeEncodeError():
            # The text is not shown: it may be part of a secret.
            return _failure("an argument or a setting is not UTF-8 text", MISCONFIGURED)
    return None


def _advice(error: DBAPIError) -> str:
    message = str(error.orig)
    return next((f" ({advice})" for sign, advice in _ADVICE.items() if sign in message), "")


def _failure(line: str, status: int) -> Failure:
    return Failure(line=printable(" ".join(line.split())), status=status)
