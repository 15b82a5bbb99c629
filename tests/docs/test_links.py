"""Each link inside the repository leads to a file, and to a heading that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, name_of, slugs, without_code

_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_local_links_of_page_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in slugs(target)):
            broken.append(link)
    assert not broken
