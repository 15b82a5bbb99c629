"""The low-water mark: the number of the sequence from which a relay's claims start.

Settled rows leave dead entries in the index of open rows. While any session of the database holds
an old snapshot, vacuum cannot remove them, and each claim would read all of them. So a claim starts
at the mark. The mark must never skip a row that a later row of its key could then overtake:

- A transaction that commits late writes below rows that were claimed before. So the mark moves to
  the end of a claim only after every transaction of that time has ended. Another claim must then
  have read from the old mark again.
- An event that was released, that waits for its retry, or that comes with a shard from another
  relay, is below the mark too. Then the next claim starts at the beginning.
- An operator's replay returns an event to the main queue; no later event has to wait for it. The
  relay is not notified: a claim starts at the beginning from time to time, and sooner if there is
  nothing to do. These full scans take no more than their share of the relay's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shieldtx.domain.sampler import Sampler

SETTLING_S = 0.5
"""A number of the sequence may be drawn a moment before its transaction is visible as running."""
FULL_SCAN_INTERVAL_S = 2.0
"""The least time in seconds between two periodic full scans of a busy relay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimSnapshot:
    """The state of the database at a claim."""

    shards: int
    """A digest of the shards and their epochs."""
    has_blocked_keys: bool
    """Some key of these shards is held."""
    oldest_running: int
    """Every transaction before this one had ended."""
    next_to_run: int
    """No transaction from this one on had begun."""
    chosen: int
    """The number of chosen rows; another transaction may have changed some meanwhile."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    seq: int
    next_to_run: int
    since: float


class LowWaterMark:
    """Keeps the mark of one relay."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seq = 0
        self._shards = 0
        self._candidate: _Candidate | None = None
        self._full_scans = Sampler(every=FULL_SCAN_INTERVAL_S, clock=clock)
        self._is_busy = True

    @property
    def shards(self) -> int:
        """The digest of the shards for which the mark is valid, as in a claim."""
        return self._shards

    def start(self) -> int:
        """Return where the next claim starts; 0 is the beginning."""
        is_due = self._full_scans.is_due(every=FULL_SCAN_INTERVAL_S if self._is_busy else 0.0)
        return 0 if is_due else self._seq

    def reset(self) -> None:
        """Start at the beginning: a row below the mark is, or may be, open again."""
        self._seq = 0
        self._candidate = None

    def record(
        self, start: int, snapshot: ClaimSnapshot | None, last: int, *, full: bool, took: float
    ) -> None:
        """Update the mark after a claim from `start` up to `last`, which took `took` seconds.

        With `full`, the claim may have left rows unclaimed; `snapshot` is None if it found none.
        """
        now = self._clock()
        if start == 0:
            self._full_scans.record(took=took)
        self._is_busy = snapshot is not None
        if snapshot is None:
            return
        if snapshot.has_blocked_keys or snapshot.shards != self._shards:
            self.reset()
            self._shards = snapshot.shards
            if snapshot.has_blocked_keys:
                return
        candidate = self._candidate
        if candidate is None:
            self._candidate = _Candidate(last, snapshot.next_to_run, now)
        elif (
            snapshot.oldest_running >= candidate.next_to_run
            and now - candidate.since >= SETTLING_S
            and (last > candidate.seq or not full)
        ):
            self._seq = candidate.seq
            self._candidate = _Candidate(last, snapshot.next_to_run, now)
