"""How a relay works: its name, its batches and its times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from shieldtx.domain.retry import RetryPolicy

OUTAGE_PAUSE = RetryPolicy(first=timedelta(seconds=0.2), longest=timedelta(seconds=10))
"""How long a relay leaves a broker alone that does not answer; the attempts are without end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySettings:
    """How a relay works; leases run by the database's clock, deadlines by the process's."""

    name: str
    """Unique among all relays and all their restarts."""
    batch_size: int = 1000
    lease: timedelta = timedelta(seconds=30)
    send_timeout: timedelta = timedelta(seconds=10)
    """How long one batch may take to be acknowledged; below the lease."""
    outage_pause: RetryPolicy = OUTAGE_PAUSE
