"""The state that a statement leaves on its connection, and that the next handler would see.

The text of the statement determines the state: a query would cost each handler a round trip. If
the text is unclear, state is assumed, which costs time and is never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from shieldtx.domain.sql import statements_in


class ResidualState(IntEnum):
    """How long the state of a statement lasts; the greater value prevails."""

    NOTHING = 0
    IN_TRANSACTION = 1
    IN_SESSION = 2
    """Until the connection is closed: a pool would pass the state to the next transaction."""


_FIRST_KEYWORD: Final = re.compile(
    r"[\s(]*(set|reset|discard|declare|prepare|listen|load|do|savepoint)\b\s*(\w*)"
)
_OF_TRANSACTION: Final = {
    ("set", "local"),
    ("set", "transaction"),
    ("set", "constraints"),
}
_OF_SQLALCHEMY: Final = "sa_savepoint_"
"""The prefix of the savepoints of begin_nested(), which are released after each handler."""

_TEMPORARY: Final = re.compile(
    r"\bcreate\s+(?:or\s+replace\s+)?(?:(?:global|local)\s+)?temp(?:orary)?\s"
    r"|(?<!insert )\binto\s+(?:(?:global|local)\s+)?temp(?:orary)?\s+\w"
    r"|\bpg_temp\b"
)
_DROPPED_AT_COMMIT: Final = re.compile(r"\bon\s+commit\s+drop\b")
_SET_LOCALLY: Final = re.compile(r"\bset_config\s*\([^()]*,\s*true\s*\)")


def residual_state_of(statement: str, parameters: Any) -> ResidualState:
    """Return for how long a statement leaves state on its connection."""
    left = max(map(_by_statement, statements_in(statement)), default=ResidualState.NOTHING)
    if left is ResidualState.IN_SESSION and _sets_locally(statement, parameters):
        return ResidualState.IN_TRANSACTION
    return left


def _by_statement(statement: str) -> ResidualState:
    text = statement.lower()
    return max(_by_content(text), _by_first_keyword(text))


def _by_first_keyword(text: str) -> ResidualState:
    found = _FIRST_KEYWORD.match(text)
    if found is None:
        return ResidualState.NOTHING
    first, second = found.groups()
    if first == "savepoint":
        of_handler = not second.startswith(_OF_SQLALCHEMY)
        return ResidualState.IN_TRANSACTION if of_handler else ResidualState.NOTHING
    if first == "declare" and "with hold" not in text:
        return ResidualState.IN_TRANSACTION
    is_local = (first, second) in _OF_TRANSACTION
    return ResidualState.IN_TRANSACTION if is_local else ResidualState.IN_SESSION


def _by_content(text: str) -> ResidualState:
    if "set_config" in text or "advisory_lock" in text:
        # The function pg_advisory_xact_lock takes locks of a transaction.
        return ResidualState.IN_SESSION
    if _TEMPORARY.search(text) is None:
        return ResidualState.NOTHING
    is_dropped = _DROPPED_AT_COMMIT.search(text) is not None
    return ResidualState.IN_TRANSACTION if is_dropped else ResidualState.IN_SESSION


def _sets_locally(statement: str, parameters: Any) -> bool:
    """Whether only calls of set_config(name, value, is_local) leave state, and all are local."""
    text = statement.lower()
    calls = text.count("set_config")
    others = map(_by_statement, statements_in(text.replace("set_config", "")))
    if not calls or ResidualState.IN_SESSION in others:
        return False
    if len(_SET_LOCALLY.findall(text)) == calls:
        return True
    # The flags may be among the parameters.
    values: Iterable[Any] = ()
    if isinstance(parameters, Mapping):
        values = parameters.values()
    elif isinstance(parameters, Sequence):
        values = parameters
    flags = [value for value in values if isinstance(value, bool)]
    return bool(flags) and all(flags)
