"""The amounts that a repair processes, and keeps in memory, at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PART_BYTES: Final = 2 * 1024 * 1024
"""Bytes of payloads read at once, or one larger payload: the drivers make up to eight copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The amounts that are processed at once."""

    batch: int
    """Rows in one transaction."""
    looked_up: int
    """Events in one lookup."""
    compared: int
    """Events whose keys are looked up in one scan of an inbox."""
    part_bytes: int = PART_BYTES
