"""The low-water mark: the number of the sequence from which a relay's claims start.

Rows that are settled leave dead entries in the index of the open ones, and while any session of the
database holds an old snapshot they cannot be cleaned away: each claim would walk over all of them.
So a claim starts at the mark. It must never pass over a row that a later one of its key could then
overtake:

- A transaction that commits late writes below what was claimed before. The mark follows to where a
  claim came only when every transaction that ran at that time has ended, and another claim from the
  old mark has looked once more.
- An event that was released, that waits for its retry, or that comes with a shard from another
  relay, is below the mark too. Then the next claim starts at the beginning.
- An operator's replay puts an event back into the main line; no later event has to wait for it. The
  relay is not notified: a claim starts at the beginning from time to time, and sooner when there is
  nothing to do, as long as these full scans take no more than their share of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shieldtx.domain.sampler import Sampler

SETTLING_S = 0.5
"""A number of the sequence may be drawn a moment before its transaction can be seen to run."""
FULL_SCAN_INTERVAL_S = 2.0
"""Between two full scans of a busy relay that nothing caused, at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimSnapshot:
    """What a claim saw around its rows."""

    shards: int
    """A digest of the shards and their epochs."""
    has_blocked_keys: bool
    """Some key of these shards waits for a retry."""
    oldest_running: int
    """Every transaction before this one had ended."""
    next_to_run: int
    """No transaction from this one on had begun."""
    chosen: int
    """So many rows were to be claimed; another transaction may have changed some meanwhile."""


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
        """The shards for which the mark holds, as a claim sees them."""
        return self._shards

    def start(self) -> int:
        """Return where the next claim starts; 0 is the beginning."""
        is_due = self._full_scans.is_due(every=FULL_SCAN_INTERVAL_S if self._is_busy else 0.0)
        return 0 if is_due else self._seq

    def reset(self) -> None:
        """Start at the beginning: some row below the mark is, or may be, open again."""
        self._seq = 0
        self._candidate = None

    def record(
        self, start: int, snapshot: ClaimSnapshot | None, last: int, *, full: bool, took: float
    ) -> None:
        """Learn from a claim that started at `start` and came to `last`, in `took` seconds.

        `full` says that it may have left rows behind; `snapshot` is None where it found nothing.
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
