"""The fence: the start of a relay's claims while keys are held, however many rows wait for them.

Rows of held keys leave the main queue one by one, which takes minutes for a million rows. Until
then each claim would read all of them. One blocked row holds all later rows of its key. So it is
enough to block the first row of each held key: claims may then start after the others. The fence is
a number of the sequence. Every row of the main queue up to the fence either

- follows a blocked row of its key and source, or
- is being published by this relay.

Only the owner of a shard unblocks its rows. So no row above the fence overtakes a row below it,
whichever relay settles the row that holds the key. The fence retreats when a row below it may be
free:

- before a row is unblocked, and when rows of a claim are released;
- when the shards or their epochs differ, which the claim itself compares;
- when a sweep finds a row that an operator has returned to the main queue.

A transaction that commits late writes below the rows that are visible now. So a sweep reads up to
the end that the main queue had at a moment, after every transaction of that moment has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from shieldtx.store.dialects import Dialect
from shieldtx.store.low_water_mark import SETTLING_S
from shieldtx.store.statements import blocked, claim
from shieldtx.store.statements import fence as sql
from shieldtx.store.tables import Tables

WINDOW = 50_000
"""The rows of the main queue that one statement reads."""
SHARE = 20
"""Sweeps from the beginning take at most one part in SHARE of the relay's time."""
RESWEEP_S = 10.0
"""The least time in seconds between the starts of two sweeps from the beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    seq: int
    next_to_run: int
    since: float


class Fence:
    """Keeps the fence of one relay; on a database without snapshots it stays at 0."""

    def __init__(
        self, tables: Tables, dialect: Dialect, clock: Callable[[], float], source: str | None
    ) -> None:
        """Read the rows of a `source`, or of all sources if None."""
        self._tables = tables
        self._dialect = dialect
        self._clock = clock
        self._source = source
        self._ahead = sql.ahead(tables, dialect)
        self._digest = sql.digest(tables, dialect)
        self._bounds = sql.bounds(tables, dialect)
        self._unfenced = sql.unfenced(tables, dialect, only_source=source is not None)
        self.reset()

    def reset(self) -> None:
        """Start at the beginning."""
        self.seq = 0
        """Claims start after this number of the sequence."""
        self.shards = 0
        """The digest of the shards and epochs for which the fence is valid, as in a claim."""
        self._swept = 0
        self._is_new = True
        self._target: _Target | None = None
        self._began = self._clock()
        self._took = 0.0

    def retreat(self, seq: int) -> None:
        """Move the fence, so that claims find the row with this number again."""
        self.seq = min(self.seq, max(seq - 1, 0))
        self._swept = min(self._swept, self.seq)

    @property
    def is_missing(self) -> bool:
        """Whether the first sweep may begin soon."""
        return self._is_new and self._target is not None

    def sweep(self, connection: Connection, relay: str) -> bool:
        """Make one step, in a transaction that locks the relay's shards; return whether to go on.

        A sweep reads up to the end that the main queue had at the end of the sweep before. While a
        transaction of that time runs, a sweep reads only up to the fence.
        """
        seen, last = connection.execute(self._ahead, blocked.of_relay(relay)).one()
        snapshot = claim.snapshot_of(seen)
        if snapshot is None:
            # Without shards, a sweep finds no rows either.
            self.reset()
            return False
        now = self._clock()
        if snapshot.shards != self.shards:
            self.reset()
            self.shards = snapshot.shards
        target = self._target
        is_settled = target is None or (
            snapshot.oldest_running >= target.next_to_run and now - target.since >= SETTLING_S
        )
        # A sweep up to the fence waits for no transaction: a long one would hide replayed rows.
        upto = target.seq if target is not None and is_settled else self.seq
        if upto > self._swept or (target is not None and is_settled):
            goes_on = self._pass_window(connection, relay, upto)
            self._took += self._clock() - now
            if connection.scalar(self._digest, blocked.of_relay(relay)) != self.shards:
                # A lease has run out meanwhile, and this step did not read all rows.
                self.reset()
                return False
            if goes_on:
                return True
        if is_settled:
            self._target = _Target(seq=last, next_to_run=snapshot.next_to_run, since=now)
        if now - self._began >= max(RESWEEP_S, SHARE * self._took):
            self._swept, self._began, self._took = 0, now, 0.0
        return False

    def _pass_window(self, connection: Connection, relay: str, target: int) -> bool:
        """Block the rows of held keys among the next rows; return whether there are more rows."""
        after, self._is_new = self._swept, False
        asked = sql.window(relay, after, target, WINDOW)
        upto, count = connection.execute(self._bounds, asked).one()
        is_last = count < WINDOW
        if is_last:
            upto = target
        asked = sql.of_source(relay, after, upto, self._source)
        rows = connection.execute(self._unfenced, asked).all()
        if to_block := [event_id for event_id, _, is_held in rows if is_held]:
            connection.execute(blocked.block_these(self._tables, self._dialect, to_block))
        free = min((seq for _, seq, is_held in rows if not is_held), default=None)
        if free is not None:
            self.seq = min(self.seq, free - 1)
            upto, is_last = free - 1, True
        self._swept = max(after, upto)
        self.seq = max(self.seq, self._swept)
        return not is_last
