"""Errors that an operator can fix, as one line: for logs, and for the reports of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, NoSuchModuleError, OperationalError

from shieldtx.domain.reasons import message_of
from shieldtx.errors import ConfigurationError, ShieldTxError
from shieldtx.logs.text import printable

_POOLER: Final = "with PgBouncer, set SHIELDTX_DATABASE_POOLER=transaction"
_ADVICE: Final = {
    "unsupported startup parameter": _POOLER,
    'prepared statement "_pg3_': _POOLER,
    "read-only transaction": "SHIELDTX_DATABASE_URL leads to a server that is not the primary",
}
"""Remedies of errors, by a part of their text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One line without secrets or line breaks."""

    line: str
    is_setting: bool = False
    """Whether a setting, a name or an argument is wrong, so that a retry fails as well."""


def explanation_of(error: BaseException | None) -> Explanation | None:  # noqa: PLR0911  one for each kind
    """Return the line about an error; None for a defect, which needs its traceback."""
    match error:
        case ShieldTxError():
            return _explanation(str(error), is_setting=isinstance(error, ConfigurationError))
        case OperationalError() | InterfaceError():
            return _explanation(f"the database cannot be used: {message_of(error)}{_advice(error)}")
        case DBAPIError():
            return _explanation(
                f"the database refused a statement: {message_of(error)}{_advice(error)}"
            )
        case NoSuchModuleError():
            return _explanation(f"SHIELDTX_DATABASE_URL: {error}", is_setting=True)
        case ImportError() if "psycopg" in (error.name or "") or "libpq" in str(error):
            line = f"psycopg cannot be used ({error}): pip install 'shieldtx[binary]'"
            return _explanation(line, is_setting=True)
        case UnicodeEncodeError():
            # The text is not shown: it may be part of a secret.
            return _explanation("an argument or a setting is not UTF-8 text", is_setting=True)
    return None


def _advice(error: DBAPIError) -> str:
    message = str(error.orig)
    return next((f" ({advice})" for sign, advice in _ADVICE.items() if sign in message), "")


def _explanation(text: str, *, is_setting: bool = False) -> Explanation:
    return Explanation(line=printable(" ".join(text.split())), is_setting=is_setting)
