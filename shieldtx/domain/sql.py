"""SQL statements that SQLAlchemy passes on without knowing what they do."""

from __future__ import annotations

import re
from typing import Final

_ENDS_TRANSACTION: Final = re.compile(
    r"(\s|;|--[^\n]*(\n|$)|/\*.*?\*/)*"
    r"(commit|end|abort|prepare\s+transaction|rollback(?!(\s+(work|transaction))?\s+to\b))\b",
    re.IGNORECASE | re.DOTALL,
)


def ends_transaction(statement: str) -> bool:
    """Whether a statement ends the transaction, behind comments too: tools put marks there."""
    return _ENDS_TRANSACTION.match(statement) is not None
