"""The confirmation prompt."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from shieldtx.cli.prompts import confirm


@pytest.mark.parametrize(
    ("answer", "confirmed"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("", False)]
)
def test_only_yes_confirms(answer: str, confirmed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert confirm("Discard 1 permanently?") is confirmed


@pytest.mark.parametrize("closed", [("stdin",), ("stdin", "stderr")])
def test_closed_standard_input_does_not_confirm(
    closed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    for name in closed:
        nothing: Any = None
        monkeypatch.setattr(sys, name, nothing)
    assert confirm("Discard 1 permanently?") is False
