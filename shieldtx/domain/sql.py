"""SQL statements that SQLAlchemy passes on without knowing what they do."""

from __future__ import annotations

import re
from typing import Final

_BEFORE: Final = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
"""What may come before a statement: comments too, in which tools put marks."""
_TO_SAVEPOINT: Final = r"rollback(?:\s+(?:work|transaction))?\s+to\b"
_ENDS_TRANSACTION: Final = re.compile(
    rf"{_BEFORE}(?:commit|end|abort|prepare\s+transaction|(?!{_TO_SAVEPOINT})rollback)\b",
    re.IGNORECASE | re.DOTALL,
)
_SAVEPOINT: Final = re.compile(
    rf"{_BEFORE}(?:(?:savepoint|release)\b|{_TO_SAVEPOINT})(?:\s+savepoint\b)?\s+(?P<name>[^\s;]+)",
    re.IGNORECASE | re.DOTALL,
)


def ends_transaction(statement: str) -> bool:
    """Whether a statement ends the transaction."""
    return _ENDS_TRANSACTION.match(statement) is not None


def savepoint_in(statement: str) -> str | None:
    """Return the name of the savepoint that a statement sets, releases or rolls back to."""
    found = _SAVEPOINT.match(statement)
    return found["name"] if found is not None else None
