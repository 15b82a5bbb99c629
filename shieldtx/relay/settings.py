"""The settings of a relay: its name, its batches and its times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from shieldtx.domain.retry import RetryPolicy

OUTAGE_PAUSE = RetryPolicy(first=timedelta(seconds=0.2), longest=timedelta(seconds=10))
"""The pauses of a relay while a broker does not respond; the number of attempts is unlimited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySettings:
    """The settings of a relay; leases use the database's clock, deadlines the process's clock."""

    name: str
    """Unique among all relays and all their restarts."""
    batch_size: int = 1000
    lease: timedelta = timedelta(seconds=30)
    send_timeout: timedelta = timedelta(seconds=10)
    """The maximum time until one batch is acknowledged; shorter than the lease."""
    outage_pause: RetryPolicy = OUTAGE_PAUSE
