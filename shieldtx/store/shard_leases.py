"""The shard leases over SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Engine

from shieldtx._process_tokens import is_of_this_process
from shieldtx.errors import ConfigurationError
from shieldtx.ports.relay import ShardLeases
from shieldtx.store.dead_owners import log_released, release_shards
from shieldtx.store.dialects import dialect_of
from shieldtx.store.shard_count import ShardCount
from shieldtx.store.statements import shard_leases as sql
from shieldtx.store.tables import Tables


class SqlLeaseStore:
    """Distributes the shards among the living relays (the port LeaseStore)."""

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        *,
        shards: int | None = None,
        has_died: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Distribute the shards of the tables; `shards` is the number that the settings expect.

        `has_died` tells by its name that a relay cannot run any more; by default, leases tell.
        """
        self._engine = engine
        self._tables = tables
        self._made_for = ShardCount(tables, setting=shards)
        self._dialect = dialect_of(engine.dialect)
        self._has_died = has_died

    def renew(self, *, relay: str, lease: timedelta) -> ShardLeases:
        """Announce the relay, extend its leases and take free shards up to its fair share.

        Raises ConfigurationError if the settings have another number of shards than the tables, or
        if the relay was built in another process; SchemaMismatch if a shard has no lease row.
        """
        if not is_of_this_process(relay):
            raise ConfigurationError(
                f"relay {relay} was built before its process forked, and other relays would take "
                "it for dead when the first process ends: build it in the process that runs it"
            )
        t, d = self._tables, self._dialect
        with self._engine.begin() as connection:
            self._made_for.of(connection)
            released = release_shards(connection, t, d, relay_died=self._has_died)
            connection.execute(sql.forget_dead_relays(t, d))
            connection.execute(sql.announce(t, d, relay=relay, lease=lease))
        log_released(relay, released)
        with self._engine.begin() as connection:
            relays = connection.scalars(sql.count_relays(t)).one()
            shards = connection.scalars(sql.count_shards(t)).one()
            self._made_for.refuse_unleased(connection, leased=shards)
            held = set(connection.scalars(sql.extend(t, d, relay=relay, lease=lease)))
            fair_share = -(-shards // relays)
            if len(held) < fair_share:
                free = sql.take_free(t, d, relay=relay, lease=lease, limit=fair_share - len(held))
                held |= set(connection.scalars(free))
        surplus = sorted(held)[fair_share:]
        return ShardLeases(shards=frozenset(held), relays=relays, surplus=frozenset(surplus))

    def release(self, *, relay: str, shards: frozenset[int]) -> None:
        """Release these shards for other relays."""
        with self._engine.begin() as connection:
            connection.execute(sql.release(self._tables, relay=relay, shards=shards))

    def leave(self, *, relay: str) -> None:
        """Release every shard of the relay, and remove the relay from the list."""
        with self._engine.begin() as connection:
            connection.execute(sql.release(self._tables, relay=relay, shards=None))
            connection.execute(sql.forget(self._tables, relay=relay))
