"""Reasons as the tables keep them, for tests that name no lines of their own code."""

from __future__ import annotations

import re

_SITE = re.compile(r" \(raised at [^()]+\.py:\d+ in [^()]+\)")


def without_site(reason: str) -> str:
    """Return a reason without the place where its error was raised; it must name one."""
    found, number = _SITE.subn("", reason)
    assert number == 1, f"the reason names no place: {reason}"
    return found
