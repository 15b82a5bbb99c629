"""The result of one pass of a relay."""

from __future__ import annotations

from dataclasses import dataclass

from shieldtx.ports.relay import Settlement


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayResult:
    """The result of one pass, in events."""

    claimed: int = 0
    published: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    """Write-backs that came too late: another relay had taken the rows over."""
    outage: str = ""
    """Why the broker is unavailable, "" while it is available."""
    ahead: int = 0
    """Events claimed already, for the next pass."""
    slowed: float = 0.0
    """Seconds for which the broker asks to receive nothing; the relay claims nothing meanwhile."""
    backlog: bool = False
    """More events may be due already; a worker passes again without waiting for a hint."""

    @classmethod
    def of(cls, settlement: Settlement, *, kept: int, outage: str = "") -> RelayResult:
        """Return the result of a settlement of which `kept` rows still carried their token."""
        return cls(
            claimed=len(settlement),
            published=len(settlement.processed),
            released=len(settlement.unsent) + len(settlement.unconfirmed),
            retried=len(settlement.retries),
            lost=len(settlement) - kept,
            outage=outage,
        )

    def then(self, later: RelayResult) -> RelayResult:
        """Return the result of this part of a pass, or this pass, and the `later` one together.

        Counts add up and the first outage stays. Remaining work (`ahead`, `slowed`, `backlog`) is
        that of the later part.
        """
        return RelayResult(
            claimed=self.claimed + later.claimed,
            published=self.published + later.published,
            retried=self.retried + later.retried,
            failed=self.failed + later.failed,
            released=self.released + later.released,
            lost=self.lost + later.lost,
            outage=self.outage or later.outage,
            ahead=later.ahead,
            slowed=later.slowed,
            backlog=later.backlog,
        )

    @property
    def more(self) -> bool:
        """Whether there was work, so that another pass may find what became due meanwhile."""
        return (self.claimed > 0 or self.ahead > 0 or self.slowed > 0) and not self.outage
