"""Quotes of errors in other texts: also when cut off, wrapped, or escaped by repr and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

_SHORTEST_PART: Final = 11
"""Minimum length of a partial quote, in characters; it must also contain several words. No shorter
text of PostgreSQL contains the beginning of a value, as `Key (id)=(4` does."""
_SHORTEST_WHOLE: Final = 5
"""A whole text of fewer characters occurs in too many other texts."""
_GAP: Final = "\x00"
"""Stands for spaces, line breaks, quotation marks, and anything else inserted between lines."""
_BETWEEN: Final = re.compile(r"[\x00()\[\]{}<>=,]")
"""Separators of words."""
_EDGES: Final = "\x00()[]{}<>=,:."
_SPECIAL: Final = re.compile(
    r"\\+(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([bfnrt]))?|[\s\"'|;]+|[^!-~]"
)
"""Escapes with a character's code, or with a letter; what a gap stands for; other alphabets."""
_LARGEST_KEPT: Final = 0xFFFF
"""JSON writes a character above this code as two."""


class _Plain(NamedTuple):
    """A text for comparison: the same, however many times repr or JSON has escaped it."""

    text: str
    places: list[tuple[int, int]]
    """The position of each of its characters in the original text."""


class Quotes:
    """Finds what errors quote of rows and payloads in other texts, and replaces it.

    The first occurrence of a quote is replaced, and later ones are left out. Texts in `allowed`
    stay, and so does a single word: errors name orders and tables, as statements and rows do.
    """

    def __init__(self, quoted: Mapping[str, str], allowed: Iterable[str]) -> None:
        plain = {_plain(text).text.strip(_GAP): instead for text, instead in quoted.items()}
        self._quoted = {text: instead for text, instead in plain.items() if text}
        self._allowed = [_plain(text).text for text in allowed]

    def reduced(self, text: str) -> str:
        """Return a text without its quotes."""
        if not self._quoted:
            return text
        plain = _plain(text)
        parts = {plain.text[i : i + _SHORTEST_PART] for i in range(len(plain.text))}
        spans = [
            (start, end, instead)
            for quoted, instead in self._quoted.items()
            for start, end in _spans(plain.text, quoted, parts)
            if not any(plain.text[start:end].strip(_EDGES) in text for text in self._allowed)
        ]
        result, after = "", 0
        for start, end, instead in _merged(spans):
            first, last = plain.places[start][0], plain.places[end - 1][1]
            result += text[after:first] + ("..." if instead in result else instead)
            after = last
        return result + text[after:]


def _spans(text: str, quoted: str, parts: set[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of a text, split into `parts`, that match another text or a part of it."""
    start = text.find(quoted) if len(quoted) >= _SHORTEST_WHOLE else -1
    while start >= 0:
        yield start, start + len(quoted)
        start = text.find(quoted, start + len(quoted))
    common = parts.intersection(
        quoted[i : i + _SHORTEST_PART] for i in range(len(quoted) - _SHORTEST_PART + 1)
    )
    starts = (i for i in range(len(text)) if text[i : i + _SHORTEST_PART] in common)
    for start, end in _united((i, i + _SHORTEST_PART) for i in starts) if common else ():
        words = text[start:end]
        if _BETWEEN.search(words.strip(_EDGES)):
            yield start + words.startswith(_GAP), end - words.endswith(_GAP)


def _united(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield spans, given in the order of their starts, with overlapping ones united."""
    first, last = 0, 0
    for start, end in spans:
        if start >= last:
            if last:
                yield first, last
            first = start
        last = max(last, end)
    if last:
        yield first, last


def _merged(spans: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Yield united spans, each with the replacement of the longest span in it."""
    ordered = sorted(spans)
    for first, last in _united((start, end) for start, end, _ in ordered):
        inside = [span for span in ordered if first <= span[0] < last]
        yield first, last, max(inside, key=lambda span: span[1] - span[0])[2]


def _plain(text: str) -> _Plain:
    found: list[str] = []
    places: list[tuple[int, int]] = []
    after = 0
    for special in _SPECIAL.finditer(text):
        start, end = special.span()
        found += text[after:start]
        places += ((i, i + 1) for i in range(after, start))
        after = end
        character = _meant(special)
        if character == _GAP and found and found[-1] == _GAP:
            places[-1] = places[-1][0], end
        elif character:
            found.append(character)
            places.append((start, end))
    found += text[after:]
    places += ((i, i + 1) for i in range(after, len(text)))
    return _Plain("".join(found), places)


def _meant(special: re.Match[str]) -> str:
    """Return the character that an escape stands for; "" for backslashes without a code."""
    code = special[1] or special[2] or special[3]
    if special[4] or (code and int(code, 16) > _LARGEST_KEPT):
        return _GAP
    character = chr(int(code, 16)) if code else special[0][0]
    if character == "\\":
        return ""
    is_kept = character.isprintable() and ord(character) <= _LARGEST_KEPT
    return character if is_kept and character not in " \"'|;" else _GAP
