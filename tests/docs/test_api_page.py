"""The page of the Python API has every name that the other pages import."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shieldtx
from tests.docs.pages import DOCS, PAGES, name_of

_LISTED = re.compile(r"^\.\. auto\w+:: (shieldtx[\w.]+)", re.MULTILINE)
_HIDDEN = re.compile(r"<!-- invisible-code-block: python\n.*?-->", re.DOTALL)
_IMPORT = re.compile(r"^ *from (shieldtx[\w.]*) import ([\w, ]+)$", re.MULTILINE)
API = set(_LISTED.findall((DOCS / "reference" / "api.md").read_text()))
OTHER_PAGE = "shieldtx.errors"
"""The page of the errors lists this module."""


def test_every_public_name_is_on_the_page() -> None:
    assert {f"shieldtx.{name}" for name in shieldtx.__all__} <= API


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_that_a_page_imports_are_on_the_api_page(page: Path) -> None:
    shown = _HIDDEN.sub("", page.read_text())
    imported = {
        f"{module}.{name.strip()}"
        for module, names in _IMPORT.findall(shown)
        for name in names.split(",")
        if module != OTHER_PAGE
    }
    assert imported <= API
