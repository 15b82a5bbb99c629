"""A refused event of a batch, which is given up in the transaction of the others."""

from __future__ import annotations

from dataclasses import dataclass

from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An attempt whose event is given up, and its ROLLBACK event."""

    attempt: Attempt
    error: Exception
    reason: str
    rollback: Envelope
    is_deliberate: bool
    """Whether the handler refuses the event; otherwise no handler can read it."""
