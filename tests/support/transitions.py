"""The transitions of the lifecycles without repairs by an operator."""

from __future__ import annotations

from typing import Any

from shieldtx.domain.states import Lifecycle


def is_unrepaired(lifecycle: Lifecycle[Any], source: str | None, target: str) -> bool:
    """Return whether a row goes from `source` to `target` without a repair."""
    return any(
        arrow.source == source and arrow.target == target and not arrow.cause.startswith("a repair")
        for arrow in lifecycle.transitions
    )
