"""Between which times rows can be judged, by the databases' own clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shieldtx.ports.retention import NOTED_AHEAD


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """What one database said about time, asked before any row was read."""

    service: str
    now: datetime
    ahead: timedelta = timedelta(0)
    """By how much it is ahead of the clock of the machine that asked."""
    oldest_transaction: datetime | None = None
    """When the longest running transaction of the database began; None when none runs."""
    obstacle: str = ""
    """Why its running transactions cannot be seen; empty when they can."""
    retention: timedelta | None = None
    """For how long the service keeps settled rows by its configuration; None: for ever."""
    purged_until: datetime | None = None
    """Rows that settled before have been purged, by what the purge noted; None: it noted nothing.
    """

    purged_meanwhile: timedelta = timedelta(0)
    """By how much more a purge may come to have removed by the time that rows are read."""

    @property
    def kept_since(self) -> datetime | None:
        """From when settled rows are kept, by the configuration and by the purge; None: all are."""
        configured = None if self.retention is None else self.now - self.retention
        found = max((t for t in (configured, self.purged_until) if t is not None), default=None)
        return None if found is None else found + self.purged_meanwhile

    @property
    def remark(self) -> str:
        """Say in a sentence that rows are purged earlier than configured; empty: they are not."""
        if self.purged_until is None:
            return ""
        kept = self.now - self.purged_until
        if self.retention is not None and kept + NOTED_AHEAD >= self.retention:
            return ""
        configured = "for ever" if self.retention is None else f"for {self.retention}"
        return (
            f"{self.service} is configured to keep its rows {configured}, and has purged those "
            f"settled before {self.purged_until:%Y-%m-%d %H:%M:%S%z}, so that older ones count as "
            f"TOO_OLD; set `retention` of {self.service} in reconcile.toml to the shorter of its "
            "SHIELDTX_RETENTION_OUTBOX and SHIELDTX_RETENTION_INBOX, unless those were raised since"
        )

    def at_end(self, *, now: datetime, purged_until: datetime | None, margin: timedelta) -> Clock:
        """Return the clock to judge by, given what the database says after rows were read.

        It is this one, unless the purge may have gone further meanwhile than the `margin` allows
        for. Then rows are read once more, which takes as long again and lets the purge go on.
        """
        took, before = now - self.now, self.kept_since
        configured = None if self.retention is None else now - self.retention
        after = max((t for t in (configured, purged_until) if t is not None), default=None)
        if after is None or (before is not None and after - before <= margin):
            return self
        return replace(self, purged_until=purged_until, purged_meanwhile=2 * took)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """From when (`horizon`) to when (`watermark`) a mismatch between two services can be told."""

    horizon: datetime | None = None
    """Older rows may have been purged on the other side; None: nothing is purged."""
    watermark: datetime | None = None
    """What moved since is in flight; None: nothing can be judged."""
    obstacle: str = ""
    """Why nothing can be judged; empty when something can."""
    transaction_since: datetime | None = None
    """When the transaction began that holds the watermark back by more than the margin; None: none
    does."""

    def unless(self, obstacle: str) -> Window:
        """Return this window, or one in which `obstacle` lets nothing be judged."""
        return Window(obstacle=obstacle) if obstacle and not self.obstacle else self


def earliest_watermark(clocks: Iterable[Clock], *, margin: timedelta) -> datetime:
    """Return the time before which nothing that these databases hold is in flight."""
    return min(min(c.now, c.oldest_transaction or c.now) for c in clocks) - margin


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """For how long the groups of a service know by its inbox row that they had an event before."""

    period: timedelta
    """After its first arrival, an event is known for that long at the least."""
    since: datetime
    """Rows settled before may have been purged."""


def memories_of(clocks: Mapping[str, Clock], *, margin: timedelta) -> dict[str, Memory]:
    """Return the memory of each service that purges rows.

    The margin is taken off twice: once because an outbox row is settled after its event arrived,
    once because the clocks of the two services may be apart. An event that came within the margin
    came in time, however short the retention is.
    """
    return {
        name: Memory(
            period=max(clock.now - clock.kept_since - 2 * margin, margin), since=clock.kept_since
        )
        for name, clock in clocks.items()
        if clock.kept_since is not None
    }


_TOLERATED = timedelta(minutes=1)
"""Clocks may differ by that much, or by the margin where it is longer."""


def window_of(clocks: Sequence[Clock], *, margin: timedelta) -> Window:
    """Return the window in which two services can be compared.

    The reads of a run are no common snapshot: each partition of each table is read at a moment of
    its own. So an accusation rests on rows alone that nothing has touched since the watermark, and
    that is the earliest time, over both databases, of

    - now minus `margin`: every step of an event (from acknowledged to received, from received to
      settled upstream) is taken to happen within the margin. An event acknowledged before the
      watermark was received before `now` was read, and `now` was read before the first row was;
    - the beginning of the oldest running transaction (of a prepared one, when it was prepared)
      minus `margin`: what it writes is stamped with
      a time after its beginning but is visible only from its commit on, perhaps after the read.
      What a transaction that began later writes is stamped after the watermark, and what one that
      ended earlier wrote is visible to all reads.

    Each row carries the times of its own database's clock. Where the two clocks differ, the slower
    one decides for both: that makes the watermark earlier, so that no row looks older than it is.
    Clocks that are further apart than the margin (and than a minute) let nothing be judged.

    The horizon is the mirror image: the later of the times up to which either service may have
    purged, by its configuration or by what its purge has noted, plus the margin.
    """
    problems = [clock.obstacle for clock in clocks if clock.obstacle]
    obstacle = "; ".join(problems) or _apart(clocks, tolerated=max(margin, _TOLERATED))
    if obstacle:
        return Window(obstacle=obstacle)
    watermark = earliest_watermark(clocks, margin=margin)
    purged = [c.kept_since for c in clocks if c.kept_since is not None]
    horizon = max(purged) + margin if purged else None
    if horizon is not None and horizon >= watermark:
        return Window(
            obstacle=f"rows up to {horizon:%Y-%m-%d %H:%M:%S%z} may have been purged, those from "
            f"{watermark:%Y-%m-%d %H:%M:%S%z} on are in flight, and none is left in between: end "
            "the transaction that runs for so long, set the clocks, or keep rows for longer"
        )
    now, oldest = min(clock.now for clock in clocks), watermark + margin
    return Window(
        horizon=horizon,
        watermark=watermark,
        transaction_since=oldest if now - oldest > margin else None,
    )


def _apart(clocks: Sequence[Clock], *, tolerated: timedelta) -> str:
    first = min(clocks, key=lambda clock: clock.ahead)
    last = max(clocks, key=lambda clock: clock.ahead)
    difference = last.ahead - first.ahead
    if difference <= tolerated:
        return ""
    return (
        f"the clock of {last.service} is {difference.total_seconds():,.0f} s ahead of that of "
        f"{first.service}, more than the {tolerated.total_seconds():,.0f} s that are tolerated: "
        "set the clocks, or reconcile with a longer margin"
    )
