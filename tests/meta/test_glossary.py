"""The glossary names what is in the code."""

from __future__ import annotations

import re

import pytest

from tests.support.project import ROOT

ROWS = re.findall(
    r"^\| ([^|]+) \| `([^`]+)` \| (.+) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
)
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "shieldtx").rglob("*.py")))


def test_glossary_defines_each_term_once():
    terms = [term for term, _, _ in ROWS]
    assert len(terms) > 40
    assert sorted(set(terms)) == sorted(terms)


@pytest.mark.parametrize(("term", "identifier"), [row[:2] for row in ROWS], ids=lambda each: each)
def test_glossary_identifier_is_in_the_code(term, identifier):
    assert re.search(rf"\b{identifier}\b", SOURCES), f"{term}: nothing is named {identifier}"
