"""The parts of shieldtx that observe the statements of a connection, by its execution options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BUFFERS: Final = "shieldtx.buffers"
"""The key of the outbox's buffers in the `info` of a session and the options of a connection."""

BARRIER_ENTRIES: Final = "shieldtx.barrier_entries"
"""The key of a guarded transaction's entries into the barrier: in the `info` of its session, and in
the options of each connection whose commit concerns them."""


def is_observed(options: Mapping[str, Any]) -> bool:
    """Whether a buffer or a guard needs the statements of the connection with these options."""
    return BUFFERS in options or BARRIER_ENTRIES in options
