"""The times between which rows can be judged, by the databases' own clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shieldtx.ports.retention import NOTED_AHEAD


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """The clock of one database, read before any row."""

    service: str
    now: datetime
    ahead: timedelta = timedelta(0)
    """The difference to the clock of the machine that asked; positive if the database is ahead."""
    oldest_transaction: datetime | None = None
    """The start of the longest running transaction of the database; None if none runs."""
    obstacle: str = ""
    """Why running transactions cannot be seen; empty if they can."""
    retention: timedelta | None = None
    """The configured retention of settled rows; None: unlimited."""
    purged_until: datetime | None = None
    """The purge noted that it has deleted rows settled before this time; None: no note."""

    purged_meanwhile: timedelta = timedelta(0)
    """The additional time that a purge may delete until the rows are read."""

    @property
    def kept_since(self) -> datetime | None:
        """The time from which settled rows are kept, by configuration and purge; None: all."""
        configured = None if self.retention is None else self.now - self.retention
        found = max((t for t in (configured, self.purged_until) if t is not None), default=None)
        return None if found is None else found + self.purged_meanwhile

    @property
    def remark(self) -> str:
        """A sentence if rows are purged earlier than configured; otherwise empty."""
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
        """Return the clock to judge by, given the state of the database after rows were read.

        The result is this clock, unless a purge may have deleted more in the meantime than the
        `margin` allows. Then rows are read once more, which takes as long again and gives the purge
        more time.
        """
        took, before = now - self.now, self.kept_since
        configured = None if self.retention is None else now - self.retention
        after = max((t for t in (configured, purged_until) if t is not None), default=None)
        if after is None or (before is not None and after - before <= margin):
            return self
        return replace(self, purged_until=purged_until, purged_meanwhile=2 * took)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The times from `horizon` to `watermark`, in which mismatches of two services can be found."""

    horizon: datetime | None = None
    """Older rows may have been purged on the other side; None: nothing is purged."""
    watermark: datetime | None = None
    """Rows with later changes are in flight; None: nothing can be judged."""
    obstacle: str = ""
    """Why nothing can be judged; empty if something can."""
    transaction_since: datetime | None = None
    """The start of the transaction that delays the watermark by more than the margin; None: none
    does."""

    def unless(self, obstacle: str) -> Window:
        """Return this window, or a window without times if there is an `obstacle`."""
        return Window(obstacle=obstacle) if obstacle and not self.obstacle else self


def earliest_watermark(clocks: Iterable[Clock], *, margin: timedelta) -> datetime:
    """Return the time before which no event of these databases is in flight."""
    return min(min(c.now, c.oldest_transaction or c.now) for c in clocks) - margin


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """How long the groups of a service recognize a repeated event by its inbox row."""

    period: timedelta
    """The minimum time after its first arrival for which an event is recognized."""
    since: datetime
    """Rows settled before this time may have been purged."""


def memories_of(clocks: Mapping[str, Clock], *, margin: timedelta) -> dict[str, Memory]:
    """Return the memory of each service that purges rows.

    The margin is subtracted twice: an outbox row is settled after its event arrived, and the clocks
    of the two services may differ. An event that came within the margin came in time, however short
    the retention is.
    """
    return {
        name: Memory(
            period=max(clock.now - clock.kept_since - 2 * margin, margin), since=clock.kept_since
        )
        for name, clock in clocks.items()
        if clock.kept_since is not None
    }


_TOLERATED = timedelta(minutes=1)
"""The tolerated difference of clocks, unless the margin is longer."""


def window_of(clocks: Sequence[Clock], *, margin: timedelta) -> Window:
    """Return the window in which two services can be compared.

    The reads of a run do not share a snapshot: each partition of each table is read at its own
    time. So a mismatch rests only on rows without changes since the watermark. The watermark is the
    earliest, over both databases, of:

    - now minus `margin`: each step of an event (from acknowledged to received, from received to
      settled upstream) is assumed to happen within the margin. An event acknowledged before the
      watermark was received before `now` was read, and `now` was read before the first row;
    - the start of the oldest running transaction (of a prepared one, the time of its preparation)
      minus `margin`: the times of its rows are after its start, but the rows are visible only from
      its commit on, perhaps after the read. Rows of a transaction that began later have times after
      the watermark. Rows of a transaction that ended earlier are visible to all reads.

    Each row has the times of its own database's clock. If the two clocks differ, the slower one
    decides for both: the watermark is then earlier, and no row looks older than it is. If the
    clocks differ by more than the margin (and by more than a minute), nothing can be judged.

    The horizon is the later of the times up to which either service may have purged, plus the
    margin. Both the configuration and the notes of the purge count.
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
