"""HTML as a test reads it: well-formed, with its tables, texts and addresses."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Checks that every element is closed in order, and collects tables, text and addresses."""

    VOID = frozenset({"meta", "br", "link"})
    SILENT = frozenset({"style", "title", "desc"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.titles: list[str] = []
        self.addresses: list[str | None] = []
        self.identities: list[str | None] = []
        self.classes: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name in {"src", "href", "action"}]
        self.identities += [value for name, value in attrs if name == "id"]
        self.classes += [c for name, value in attrs if name == "class" for c in str(value).split()]
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag in self.SILENT:
            self.titles.append("")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.SILENT & set(self.open):
            self.titles[-1] += data
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data
