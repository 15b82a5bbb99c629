"""HTML as a test reads it: well-formed, with its elements, tables, texts and addresses."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_EDGE = "\0"
"""Marks the beginning or the end of a block."""


class Page(HTMLParser):
    """Checks that every element is closed in order, and collects elements, tables and text."""

    VOID = frozenset({"meta", "br", "link"})
    SILENT = frozenset({"style", "title", "desc"})
    INLINE = frozenset({"a", "b", "bdi", "code", "small", "time"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.titles: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = shown(self.text)
        self.tables = [[[shown(cell) for cell in row] for row in table] for table in self.tables]

    @property
    def addresses(self) -> list[str | None]:
        return [each for name in ("src", "href", "action") for each in self.values(name)]

    @property
    def identities(self) -> list[str | None]:
        return self.values("id")

    @property
    def classes(self) -> list[str]:
        return [each for value in self.values("class") for each in str(value).split()]

    def values(self, attribute: str) -> list[str | None]:
        return [attrs[attribute] for _, attrs in self.elements if attribute in attrs]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in self.SILENT:
            self.titles.append("")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)
        if tag not in self.INLINE:
            self.add(_EDGE)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.INLINE:
            self.add(_EDGE)
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.SILENT & set(self.open):
            self.titles[-1] += data
        else:
            self.add(data)

    def add(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def shown(text: str) -> str:
    """Return text with white space as a browser shows it: none at the edges of blocks."""
    return re.sub("[ \n]+", " ", re.sub(f"[ \n]*{_EDGE}[ \n{_EDGE}]*", "", text))
