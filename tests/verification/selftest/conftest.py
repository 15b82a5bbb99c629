"""The browser of the tests of pages, whose own tests are here."""

from __future__ import annotations

from tests.browser.conftest import chromium

__all__ = ["chromium"]
