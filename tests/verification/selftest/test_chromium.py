"""Tests of the browser of the tests: its errors when it is missing, or dies."""

from __future__ import annotations

import pytest

from tests.browser.chromium import BrowserError, Chromium, installed


def test_missing_chromium_is_reported_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed() is None
    with pytest.raises(BrowserError, match="apt-get install chromium"):
        Chromium(tmp_path)


@pytest.mark.skipif(installed() is None, reason="Chromium is not installed")
def test_a_chromium_that_dies_is_an_error_and_not_a_long_wait(tmp_path):
    with Chromium(tmp_path) as browser:
        assert browser.value("1 + 1") == 2
        browser._process.kill()
        browser._process.wait()
        with pytest.raises(BrowserError, match="Chromium ended"):
            browser.value("1 + 1")


def test_what_chromium_cannot_do_is_an_error(chromium, tmp_path):
    with pytest.raises(BrowserError, match="beyond"):
        chromium.value("beyond.all")
    with pytest.raises(BrowserError, match="ERR_FILE_NOT_FOUND"):
        chromium.open(tmp_path / "nowhere.html")
