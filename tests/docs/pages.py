"""The pages of the documentation, and what stands in them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.project import ROOT

DOCS: Final = ROOT / "docs"
PAGES: Final = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
SHELLS: Final = {"bash", "sh", "shell", "console", ""}

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(shieldtx [^`]+)`")


def name_of(page: Path) -> str:
    """Return the name of a page as the test's id."""
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", text)


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a language, also those inside a list."""
    found = _FENCE.findall(page.read_text())
    return [textwrap.dedent(body) for _, info, body in found if info == language]


def commands(page: Path) -> Iterator[str]:
    """Yield each `shieldtx ...` of the shell blocks and of the text."""
    text = page.read_text()
    for _, language, body in _FENCE.findall(text):
        if language.split(" ")[0] in SHELLS:
            for line in body.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\||;|\)", line.split("  #")[0]):
                    words = re.sub(r"^\s*(\$ )?([A-Z_]+=\S+ )*(exec )?", "", part)
                    if words.startswith("shieldtx "):
                        yield words
    yield from _INLINE.findall(without_code(text))


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return set(plain)
