"""SQL statements that SQLAlchemy passes on without knowing their effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_LONGEST_KEPT: Final = 2_000
"""Up to this length, the statements of a text are cached: the same text comes again and again."""

# No alternative here matches a text in two ways, so that the time grows linearly with its length.
_TOKEN: Final = re.compile(
    r"--[^\n]*|/\*|;"
    r"|\b[eE]'(?:[^'\\]|\\.)*(?:'|\Z)|'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z)"
    r"|(?<![\w$])(?P<dollars>\$(?:[^\W\d]\w*)?\$)",
    re.DOTALL,
)
"""A comment, a quoted text or the end of a statement. (After a doubled quote the next text
begins.)"""
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
_HAS_A_BODY: Final = re.compile(r"\bbegin\s+atomic\b", re.IGNORECASE)
"""The body of a function: its statements end with a semicolon, and the body with END."""

_OF_TRANSACTIONS: Final = re.compile(
    r"\b(?:commit|end|abort|prepare|rollback|savepoint|release)\b", re.IGNORECASE
)
_TO_SAVEPOINT: Final = r"rollback(?:\s+(?:work|transaction))?\s+to\b"
_ENDS_TRANSACTION: Final = re.compile(
    rf"(?:commit|end|abort|prepare\s+transaction|(?!{_TO_SAVEPOINT})rollback)\b", re.IGNORECASE
)
_SAVEPOINT: Final = re.compile(
    rf"(?:(?:savepoint|release)\b|{_TO_SAVEPOINT})(?:\s+savepoint\b)?"
    r"\s*(?:\"(?P<quoted>(?:[^\"]|\"\")+)\"|(?P<plain>[^\s\"]+))",
    re.IGNORECASE,
)


def statements_in(text: str) -> tuple[str, ...]:
    """Return the statements of a text, without comments, and without space around them."""
    return _known(text) if len(text) <= _LONGEST_KEPT else _split(text)


def ends_transaction(text: str) -> bool:
    """Whether one of the statements of a text ends the transaction."""
    return any(_ENDS_TRANSACTION.match(each) for each in _of_transactions(text))


def savepoints_in(text: str) -> tuple[str, ...]:
    """Return the names of savepoints that a text sets, releases or rolls back to, in order.

    In the spelling of the server: lower case, unless quoted.
    """
    found = map(_SAVEPOINT.match, _of_transactions(text))
    return tuple(_name_in(each) for each in found if each is not None)


def _of_transactions(text: str) -> tuple[str, ...]:
    return statements_in(text) if _OF_TRANSACTIONS.search(text) is not None else ()


def _name_in(found: re.Match[str]) -> str:
    quoted, plain = found["quoted"], found["plain"]
    return quoted.replace('""', '"') if quoted else plain.lower()


def _split(text: str) -> tuple[str, ...]:
    if _HAS_A_BODY.search(text) is not None:
        return (text.strip(),)
    statements = ["".join(parts).strip() for parts in _parts(text)]
    return tuple(each for each in statements if each)


_known: Final = lru_cache(maxsize=512)(_split)


def _parts(text: str) -> Iterator[list[str]]:
    """Yield the parts of each statement, with a space in place of each comment."""
    parts: list[str] = []
    at = 0
    while (token := _TOKEN.search(text, at)) is not None:
        parts.append(text[at : token.start()])
        word, at = token[0], token.end()
        if token["dollars"]:
            end = text.find(word, at)
            at = len(text) if end < 0 else end + len(word)
            parts.append(text[token.start() : at])
        elif word == ";":
            yield parts
            parts = []
        elif word == "/*":
            at = _end_of_comment(text, at)
            parts.append(" ")
        else:
            parts.append(" " if word.startswith("--") else word)
    yield [*parts, text[at:]]


def _end_of_comment(text: str, at: int) -> int:
    """Return where a comment ends; PostgreSQL's comments may be nested."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, at)
        if edge is None:
            return len(text)
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at
