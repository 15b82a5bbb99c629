"""Blocked rows: later rows of held keys leave the main queue, so that claims do not read them.

The first row of each key leaves at once, which makes a fence (`store.fence`); the others follow.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from shieldtx.domain.reasons import loggable
from shieldtx.store.dialects import Dialect
from shieldtx.store.fence import Fence
from shieldtx.store.low_water_mark import SETTLING_S
from shieldtx.store.statements import blocked as sql
from shieldtx.store.statements.blocked import Key, Position
from shieldtx.store.statements.fence import bounds, window
from shieldtx.store.tables import Tables

SCAN_INTERVAL_S = 1.0
"""Seconds between two scans of the main queue, when the last scan has found little."""
SHARE = 20
"""Scans that find little take at most one part in SHARE of the relay's time."""
BUDGET_S = 0.2
"""The time that one scan may take; new events of other keys wait meanwhile."""
LONGEST_S = 5.0
"""The time of one scan until there is a fence, if the claim before took half as long."""
WINDOW = 2_000
"""The rows of one statement."""
LARGEST = 16
"""The most windows that one statement blocks, as far as smaller statements take little time."""
STEP_S = 0.1
"""The time that a statement that blocks rows should take."""
_KEYS_TOGETHER = 100
_LAST = 2**63 - 1
"""The largest number of a sequence."""
_PART_OF_UNBLOCKING = 1 / 8
_WORTH_IT = 1 / 10
"""The share of its rows that a scan has to block or unblock for the next to follow at once."""

log = logging.getLogger(__name__)


class BlockedRows:
    """Blocks and unblocks rows of one relay's shards, in bounded steps between its claims.

    The keys of rows that this relay settles are known at once. A periodic scan finds rows that
    became free otherwise: another relay settled a row, this process was restarted, a step failed.
    """

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        dialect: Dialect,
        clock: Callable[[], float],
        *,
        source: str | None = None,
    ) -> None:
        """Keep a fence for claims of a `source`, or of any source if None."""
        self.fence = Fence(tables, dialect, clock, source)
        self._engine = engine
        self._tables = tables
        self._dialect = dialect
        self._clock = clock
        self._leased = sql.leased(tables, dialect)
        self._blocked_shards = sql.shards_with_blocked_keys(tables, dialect)
        self._bounds = bounds(tables, dialect)
        self._block_part = sql.block(tables, dialect)
        self._holders = sql.holders(tables)
        self._holders_of_key = sql.holders_of_key(tables)
        self._freed: set[Key] = set()
        """The keys with a settled row that had held the key."""
        self._next_scan = clock()
        self._after = 0
        """The number up to which the main queue was scanned."""
        self._windows = 1
        """The number of windows that one statement blocks."""
        self._to_scan: deque[Position] = deque()
        """The positions from which blocked rows of shards are still to be scanned."""
        self._known: set[int] = set()
        """The shards whose blocked rows were scanned, or are queued for a scan."""
        self._found = 0
        self._seen = 0
        self._is_fencing = False
        """The last scan ended before the fence was set up."""

    def note_free_keys(self, keys: Iterable[Key]) -> None:
        """Record keys with a settled row that had held the key."""
        self._freed.update(keys)

    def run_if_due(self, relay: str, *, claim_took: float = 0.0) -> bool:
        """Make some steps if they are due; return whether rows may be back in the main queue.

        An error is logged, and the next scan comes later. The claim that follows does not depend on
        these steps, and detects by itself whether the database is reachable.
        """
        began = self._clock()
        is_scan = began >= self._next_scan
        if not is_scan and not self._freed:
            return False
        self._found = self._seen = 0
        self._is_fencing = False
        try:
            unblocked = self._make_steps(relay, claim_took, is_scan=is_scan)
        except SQLAlchemyError as error:
            self._freed.clear()
            # The failed step may have been committed.
            self.fence.reset()
            pause = max(SCAN_INTERVAL_S, SHARE * (self._clock() - began))
            self._next_scan = began + pause
            log.warning(
                "blocked rows not moved, claims slow",
                exc_info=loggable(error),
                extra={
                    "action": "blocked_rows_not_moved",
                    "relay": relay,
                    "delay_s": round(pause),
                },
            )
            return True
        if is_scan:
            took = self._clock() - began
            pause = max(SCAN_INTERVAL_S, SHARE * took)
            if self._is_worth_it:
                pause = 0.0
            elif self.fence.is_missing:
                pause = SETTLING_S
            self._next_scan = began + pause
        return unblocked > 0

    def _make_steps(self, relay: str, claim_took: float, *, is_scan: bool) -> int:
        ends = self._clock() + BUDGET_S
        with self._engine.begin() as connection:
            shards = connection.scalars(self._blocked_shards, sql.of_relay(relay)).all()
        if not shards:
            self._freed.clear()
            self._known.clear()
            self.fence.reset()
            return 0
        unblocked = self._unblock_freed(relay, ends)
        if is_scan:
            # A share of the time: this scan reads all blocked rows, and rarely finds a free row.
            until = min(self._clock() + BUDGET_S * _PART_OF_UNBLOCKING, ends)
            unblocked += self._unblock(relay, shards, until)
            until = self._clock() + max(BUDGET_S, min(2 * claim_took, LONGEST_S))
            if self._set_up_fence(relay, until):
                self._block(relay, ends)
        return unblocked

    def _set_up_fence(self, relay: str, ends: float) -> bool:
        """Block the first row of each held key; return whether there was time for all."""
        while True:
            with self._step(relay) as (connection, _):
                goes_on = self.fence.sweep(connection, relay)
            if not goes_on:
                return True
            if self._clock() >= ends:
                self._is_fencing = True
                return False

    @contextmanager
    def _step(self, relay: str) -> Iterator[tuple[Connection, Sequence[int]]]:
        """Begin a transaction; yield the relay's shards, whose owner does not change in it."""
        with self._engine.begin() as connection:
            yield connection, connection.scalars(self._leased, sql.of_relay(relay)).all()

    @property
    def _is_worth_it(self) -> bool:
        is_found = self._seen >= WINDOW and self._found > self._seen * _WORTH_IT
        return is_found or self._is_fencing

    def _block(self, relay: str, ends: float) -> None:
        """Remove rows of held keys from the main queue, from where the last scan ended."""
        while True:
            began, size = self._clock(), WINDOW * self._windows
            with self._step(relay) as (connection, _):
                asked = window(relay, self._after, _LAST, size)
                upto, count = connection.execute(self._bounds, asked).one()
                part = sql.part(relay, self._after, upto)
                found = connection.execute(self._block_part, part).rowcount if count else 0
            self._found += found
            self._seen += count
            self._after = upto if count == size else 0
            took = self._clock() - began
            self._windows = max(1, min(LARGEST, int(self._windows * STEP_S / max(took, 1e-3))))
            if not self._after or self._clock() >= ends:
                return

    def _unblock_freed(self, relay: str, ends: float) -> int:
        """Return the rows of freed keys to the main queue, as far as there is time."""
        count = 0
        # Each call starts at the first rows of the keys: they may have been blocked again.
        to_do = deque(Position(shard, key) for shard, key in sorted(self._freed))
        while to_do:
            with self._step(relay) as (connection, shards):
                count += self._unblock_next(connection, shards, to_do)
            if self._clock() >= ends:
                break
        return count

    def _unblock_next(
        self, connection: Connection, shards: Sequence[int], to_do: deque[Position]
    ) -> int:
        """Return the rows of some freed keys, at most as many as one statement may take."""
        free: dict[UUID, int] = {}
        for _ in range(min(_KEYS_TOGETHER, len(to_do))):
            position, size = to_do.popleft(), WINDOW - len(free)
            if position.shard not in shards:
                self._freed.discard((position.shard, position.key))
                continue
            asked = sql.after(position, size)
            rows = connection.execute(self._holders_of_key, asked).all()
            some, position = sql.free_among(rows, position)
            free |= some
            if len(rows) == size and some:
                # After the other keys, which may have few rows.
                to_do.append(position)
                break
            self._freed.discard((position.shard, position.key))
        return self._bring_back(connection, free)

    def _unblock(self, relay: str, shards: Sequence[int], ends: float) -> int:
        """Return rows that became free unnoticed; shards that are new here come first."""
        self._known.intersection_update(shards)
        new = [shard for shard in shards if shard not in self._known]
        self._to_scan.extendleft(map(Position, new))
        self._known.update(new)
        if not self._to_scan:
            self._to_scan.extend(map(Position, shards))
        count = 0
        while self._to_scan:
            position = self._to_scan.popleft()
            with self._step(relay) as (connection, mine):
                if position.shard in mine:
                    asked = sql.after(position, WINDOW)
                    rows = connection.execute(self._holders, asked).all()
                    free, position = sql.free_among(rows, position)
                    count += self._bring_back(connection, free)
                    if len(rows) == WINDOW:
                        self._to_scan.appendleft(position)
            if self._clock() >= ends:
                break
        return count

    def _bring_back(self, connection: Connection, free: Mapping[UUID, int]) -> int:
        if free:
            self.fence.retreat(min(free.values()))
            connection.execute(sql.unblock(self._tables, self._dialect, list(free)))
        self._found += len(free)
        self._seen += len(free)
        return len(free)
