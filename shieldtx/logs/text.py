"""Foreign text on terminals and in logs."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return foreign text with non-printable characters escaped: a terminal obeys some."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
