"""Fixture of the browser for the tests of pages; its own tests are here."""

from __future__ import annotations

from tests.browser.conftest import chromium

__all__ = ["chromium"]
