"""HTML and SVG from values: text is escaped unless it says that it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from shieldtx.reconcile.report.labels import visible

_VOID = frozenset({"br"})


class Markup(str):
    """Text that is markup, not to be escaped again."""

    __slots__ = ()


def element(tag: str, *content: str | None, **attributes: str | float | None) -> Markup:
    """Return an element; what is None is left out, `class_` is class and `text_anchor` text-anchor.

    Content that is not Markup is escaped. Attributes without a value are left out too.
    """
    opening = " ".join([tag, *(_attribute(k, v) for k, v in attributes.items() if v is not None)])
    if tag in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(*content)}</{tag}>")


def joined(*content: str | None) -> Markup:
    """Return pieces one after the other, escaped where they are not Markup."""
    return Markup("".join(_escaped(piece) for piece in content if piece is not None))


def foreign(text: str) -> Markup:
    """Return text that others wrote, so that it disturbs neither markup nor its neighbours.

    Whatever way it is written in, right to left too, it stays where it is put.
    """
    return element("bdi", visible(text))


def code(text: str) -> Markup:
    """Return foreign text to be read letter by letter."""
    return element("code", foreign(text))


def with_code(sentence: str) -> Markup:
    """Return a sentence of ours in which commands and names stand between backticks."""
    return joined(
        *(
            element("code", piece) if number % 2 else piece
            for number, piece in enumerate(sentence.split("`"))
        )
    )


def table(
    heads: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    caption: str | None = None,
    numbers_from: int | None = None,
    class_: str | None = None,
) -> Markup:
    """Return a table whose rows are named by their first cells.

    Cells carry the name of their column for narrow screens, where they stand below each other;
    columns from `numbers_from` on hold numbers.
    """
    heads = list(heads)

    def css(column: int) -> str | None:
        return "n" if numbers_from is not None and column >= numbers_from else None

    def head(column: int, name: str) -> Markup:
        return element("th", name, scope="col", class_=css(column))

    def cell(column: int, content: str) -> Markup:
        if column == 0:
            return element("th", content, scope="row")
        return element("td", content, class_=css(column), data_head=heads[column])

    return element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", element("tr", *(head(n, name) for n, name in enumerate(heads)))),
        element(
            "tbody",
            *(element("tr", *(cell(n, content) for n, content in enumerate(row))) for row in rows),
        ),
        class_=class_,
    )


def definitions(pairs: Iterable[tuple[str, str]], *, class_: str | None = None) -> Markup:
    """Return names with what they stand for."""
    return element(
        "dl",
        *(element("div", element("dt", name), element("dd", value)) for name, value in pairs),
        class_=class_,
    )


def items(contents: Iterable[str]) -> Markup:
    """Return a list."""
    return element("ul", *(element("li", content) for content in contents))


def _escaped(piece: str) -> str:
    return piece if isinstance(piece, Markup) else escape(piece)


def _attribute(name: str, value: str | float) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return f'{name.rstrip("_").replace("_", "-")}="{escape(text)}"'
