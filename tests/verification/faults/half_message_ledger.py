"""The database of local transactions outside the outbox's database, as scenarios use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

SOON: Mapping[str, str] = MappingProxyType(
    {
        "SHIELDTX_HALF_IMMUNITY": "0.3",
        "SHIELDTX_HALF_CHECK_INTERVAL": "2",
        "SHIELDTX_HALF_CHECK_TIMEOUT": "1.5",
        "SHIELDTX_BARRIER_PATIENCE": "0.3",
        # Enough checks for a slow machine: no message becomes UNRESOLVED.
        "SHIELDTX_HALF_CHECKS": "1000",
        "BANK_HALF_TICK": "0.2",
    }
)
"""Settings of relays whose checks a scenario awaits."""


@dataclass
class Ledger:
    """The upstream bank's old ledger."""

    url: str

    @cached_property
    def engine(self) -> Engine:
        """Return the tests' own engine for it, which bypasses every proxy."""
        return create_engine(self.url, poolclass=NullPool, connect_args={"connect_timeout": 5})

    def one(self, statement: str, **parameters: Any) -> Any:
        """Read one value."""
        with self.engine.connect() as connection:
            return connection.execute(text(statement), parameters).scalar_one()

    def holds(self, account: str) -> bool:
        """Return whether the transfer from an account has committed."""
        return bool(self.one("SELECT count(*) FROM transfer WHERE account = :a", a=account))

    def is_waited_for(self) -> bool:
        """Return whether a check waits, at the barrier, for a local transaction in progress."""
        return bool(
            self.one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO shield_barrier%'"
            )
        )
