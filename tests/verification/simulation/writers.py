"""The writers of the upstream bank: processes that may use another number of shards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy.dialects import postgresql

from shieldtx.store.shard_count import ShardCount
from shieldtx.store.tables import tables
from tests.verification.simulation.database import Database
from tests.verification.simulation.processes import Process

_TABLES, _DIALECT = tables(), postgresql.dialect()


class _Pool:
    """Connections of one process to its database."""


class Writer:
    """A web process with a setting for the number of shards; None: it has no such setting."""

    def __init__(self, database: Database, setting: int | None) -> None:
        self._database = database
        self._count = ShardCount(_TABLES, setting=setting)
        self._pool = _Pool()

    def shards(self, client: Process[None]) -> int:
        """Return the number by which an event is written, as the product finds it.

        The writer queries the tables once. Raises ConfigurationError where the setting differs.
        """

        def scalar(_: object) -> int:
            client.before("number of shards")
            return len(self._database.shards)

        connection: Any = SimpleNamespace(
            engine=SimpleNamespace(pool=self._pool), dialect=_DIALECT, scalar=scalar
        )
        return self._count.of(connection)
