"""The tables of a service as the command line and the workers use them: one store for each use."""

from __future__ import annotations

from shieldtx.app.connections import Connections
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.settings.settings import Settings
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.discards import SqlDiscards
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.schema import Schema
from shieldtx.store.status import SqlLimitStatus, SqlStatus
from shieldtx.store.trace import SqlTraceStore


class Stores:
    """Builds stores on a service's own database."""

    def __init__(
        self, settings: Settings, *, connections: Connections, half_messages: HalfMessageWiring
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._half_messages = half_messages

    def schema(self) -> Schema:
        """Build the maker and checker of the tables."""
        s = self._settings
        return Schema(self._connections.engine, schema=s.database_schema, shards=s.shards)

    def status(self) -> SqlStatus:
        """Build the reader of a service's counts: what waits, what failed, how old it is."""
        return SqlStatus(self._connections.engine, self._connections.tables)

    def limits(self) -> SqlLimitStatus:
        """Build the reader of topics and partitions that are at their limits."""
        return SqlLimitStatus(self._connections.engine, self._connections.tables)

    def inbox(self) -> SqlInboxStore:
        """Build the consumer's side of the inbox table."""
        return SqlInboxStore(
            self._connections.engine,
            self._connections.tables,
            batch_bytes=self._settings.consumer_batch_bytes,
        )

    def trace(self) -> SqlTraceStore:
        """Build the store of traced attempts, which also reads what the tables know of an event."""
        return SqlTraceStore(self._connections.engine, self._connections.tables)

    def dead_letters(self) -> SqlDeadLetters:
        """Build the finder and replayer of events that wait for an operator."""
        return SqlDeadLetters(self._connections.engine, self._connections.tables)

    def discards(self) -> SqlDiscards:
        """Build what discards rows that will never be handled."""
        return SqlDiscards(self._connections.engine, self._connections.tables)

    def half_message_admin(self) -> SqlHalfMessageAdmin:
        """Build what shows half messages to an operator, and ends them in the operator's name."""
        return SqlHalfMessageAdmin(
            self._connections.engine,
            self._connections.tables,
            barrier_of=self._half_messages.barrier_to_ask,
            barrier_retention=self._settings.retention_barrier,
        )
