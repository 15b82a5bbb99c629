"""What one pass of a relay did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayPass:
    """What one pass did, in events."""

    claimed: int = 0
    published: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    """Write-backs that came too late: another relay had taken the rows over."""
    outage: str = ""
    ahead: int = 0
    """Claimed already, for the next pass."""
    slowed: float = 0.0
    """For how many seconds the broker wants to be left alone; nothing is claimed meanwhile."""
    backlog: bool = False
    """More may be due already; a worker passes again without waiting for a hint."""

    def plus(self, other: RelayPass) -> RelayPass:
        """Add two parts of a pass up."""
        return RelayPass(
            claimed=self.claimed + other.claimed,
            published=self.published + other.published,
            retried=self.retried + other.retried,
            failed=self.failed + other.failed,
            released=self.released + other.released,
            lost=self.lost + other.lost,
            outage=self.outage or other.outage,
            ahead=other.ahead,
            slowed=other.slowed,
            backlog=other.backlog,
        )

    @property
    def more(self) -> bool:
        """Whether there was work, so that another pass may find what became due meanwhile."""
        return (self.claimed > 0 or self.ahead > 0 or self.slowed > 0) and not self.outage
