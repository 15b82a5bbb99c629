"""SQL statements that SQLAlchemy passes on without knowing what they do."""

from __future__ import annotations

import re
from typing import Final

_ENDS_TRANSACTION: Final = re.compile(
    r"(\s|;|--[^\n]*(\n|$)|/\*.*?\*/)*"
    r"(commit|end|abort|prepare\s+transaction|rollback(?!(\s+(work|transaction))?\s+to\b))\b",
    re.IGNORECASE | re.DOTALL,
)

_SAVEPOINT: Final = re.compile(
    r"\s*(savepoint|(rollback|abort)(\s+(work|transaction))?\s+to(\s+savepoint)?"
    r"|release(\s+savepoint)?)\s+(?P<name>\S+)",
    re.IGNORECASE,
)


def ends_transaction(statement: str) -> bool:
    """Whether a statement ends the transaction, behind comments too: tools put marks there."""
    return _ENDS_TRANSACTION.match(statement) is not None


def savepoint_in(statement: str) -> str | None:
    """Return the name of the savepoint that a statement sets, releases or rolls back to."""
    found = _SAVEPOINT.match(statement)
    return found["name"] if found is not None else None
