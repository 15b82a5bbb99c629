"""Early end of the leases whose owner is known to have died, instead of waiting for their end.

Only the time of a takeover changes. The next owner takes shards and rows as after any lease: shards
with a higher epoch, rows with another token. What the dead owner began is fenced in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from sqlalchemy import Connection, Engine

from shieldtx._process_tokens import has_died, owner_has_died
from shieldtx.store.dialects import Dialect, autocommit_engine, dialect_of
from shieldtx.store.statements import first_attempts, inbox, outbox, shard_leases
from shieldtx.store.tables import Tables

log = logging.getLogger(__name__)


class DeadOwners:
    """Finds dead owners of leases on this host."""

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        *,
        relay_died: Callable[[str], bool] = owner_has_died,
        consumer_died: Callable[[UUID], bool] = has_died,
    ) -> None:
        self._engine = autocommit_engine(engine)
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._relay_died = relay_died
        self._consumer_died = consumer_died

    def has_relay(self) -> bool:
        """Whether a dead relay owns shards, which the next renewal of a relay releases."""
        with self._engine.begin() as connection:
            owners = connection.scalars(shard_leases.owners(self._tables, self._dialect)).all()
        return any(map(self._relay_died, owners))

    def end_first_attempts(self, group: str) -> int:
        """End the leases of first attempts that died with their worker; return their number.

        Such an attempt stays counted. Later attempts of an event keep their lease: a handler that
        kills its process must not use up all attempts within seconds.
        """
        t, d = self._tables, self._dialect
        with self._engine.begin() as connection:
            tokens = connection.scalars(
                first_attempts.tokens_of_first_attempts(t, d), {inbox.GROUP.key: group}
            ).all()
        dead = [token for token in tokens if self._consumer_died(token)]
        if not dead:
            return 0
        given = {inbox.GROUP.key: group, first_attempts.TOKENS: dead}
        with self._engine.begin() as connection:
            count = connection.execute(first_attempts.end_first_attempts(t, d), given).rowcount
        # 0 where the server still executes the dead worker's transactions.
        if count:
            log.warning(
                "attempts of dead workers ended",
                extra={"action": "dead_attempts_ended", "group": group, "count": count},
            )
        return count


def release_shards(
    connection: Connection, t: Tables, d: Dialect, *, relay_died: Callable[[str], bool]
) -> dict[str, int]:
    """Release the shards of dead relays and the rows that they had claimed.

    Returns the number of shards by relay. The server may still execute a statement of a dead relay.
    What it has locked is left to a later call: a renewal must not wait longer than its lease.
    """
    released: dict[str, int] = {}
    for name in sorted(filter(relay_died, connection.scalars(shard_leases.owners(t, d)))):
        shards = connection.scalars(shard_leases.owned_and_idle(t, relay=name)).all()
        locked = connection.scalars(outbox.lock_leased(t, d, shards)).all()
        # All rows or none: later rows of a key must not overtake a row whose lease lasts.
        if len(locked) < len(connection.scalars(outbox.leased(t, d, shards)).all()):
            continue
        connection.execute(outbox.end_leases(t, d, shards))
        connection.execute(shard_leases.release(t, relay=name, shards=frozenset(shards)))
        if shards:
            released[name] = len(shards)
        if not connection.scalars(shard_leases.count_owned(t, relay=name)).one():
            connection.execute(shard_leases.forget(t, relay=name))
    return released


def log_released(relay: str, released: dict[str, int]) -> None:
    """Log the shards that a relay has released for dead ones."""
    for name, count in released.items():
        log.warning(
            "shards of dead relay released",
            extra={
                "action": "dead_shards_released",
                "relay": relay,
                "dead_relay": name,
                "count": count,
            },
        )
