"""Errors that an operator can do something about, as one line and an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, NoSuchModuleError, OperationalError

from shieldtx.cli.output import printable
from shieldtx.domain.reasons import message_of
from shieldtx.errors import ConfigurationError, ShieldTxError

FAILED: Final = 1
MISCONFIGURED: Final = 2
"""Also of a command line that cannot be understood."""


_POOLER: Final = "with PgBouncer, set SHIELDTX_DATABASE_POOLER=transaction"
_ADVICE: Final = {
    "unsupported startup parameter": _POOLER,
    'prepared statement "_pg3_': _POOLER,
    "read-only transaction": "SHIELDTX_DATABASE_URL leads to a server that is not the primary",
}
"""What to do about an error, by a part of its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What to say, without secrets and without line breaks, and how to exit."""

    line: str
    status: int


def failure_of(error: BaseException | None) -> Failure | None:  # noqa: PLR0911  one a kind
    """Return how to report an error; None for one that is a defect and needs its traceback."""
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
            # Not shown: it may be part of a secret.
            return _failure("an argument or a setting is not UTF-8 text", MISCONFIGURED)
    return None


def _advice(error: DBAPIError) -> str:
    told = str(error.orig)
    return next((f" ({advice})" for sign, advice in _ADVICE.items() if sign in told), "")


def _failure(line: str, status: int) -> Failure:
    return Failure(line=printable(" ".join(line.split())), status=status)
