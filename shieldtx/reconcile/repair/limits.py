"""How much a repair does, and holds in memory, at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PART_BYTES: Final = 2 * 1024 * 1024
"""Of payloads that are read at once, or one larger payload: the drivers make up to eight copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much is done at once."""

    batch: int
    """Rows of one transaction."""
    looked_up: int
    """Events that are looked up at once."""
    compared: int
    """Events whose keys are looked up at once: for that, an inbox is scanned."""
    part_bytes: int = PART_BYTES
