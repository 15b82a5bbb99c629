"""Stores on a service's tables for the command line and the workers: one store for each use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from shieldtx._extras import import_extra
from shieldtx.app.connections import Connections
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.domain.events import Envelope
from shieldtx.outbox.outbox import Outbox
from shieldtx.settings.settings import Settings
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.dead_owners import DeadOwners
from shieldtx.store.discards import SqlDiscards
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.parked_replays import SqlParkedReplays
from shieldtx.store.pauses import SqlPauseAdmin, SqlPauseStore
from shieldtx.store.refusals import SqlRefusals
from shieldtx.store.status import SqlLimitStatus, SqlStatus
from shieldtx.store.trace import SqlTraceStore
from shieldtx.store.unfinished_rows import UnfinishedRows

if TYPE_CHECKING:
    from shieldtx.store.schema import Schema


class Stores:
    """Builds stores on a service's own database."""

    def __init__(
        self, settings: Settings, *, connections: Connections, half_messages: HalfMessageWiring
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._half_messages = half_messages

    def schema(self) -> Schema:
        """Build the creator and checker of the tables."""
        with import_extra("the schema of the tables"):
            from shieldtx.store.schema import Schema  # noqa: PLC0415  writers need no Alembic

        s = self._settings
        return Schema(self._connections.engine, schema=s.database_schema, shards=s.shards)

    def status(self) -> SqlStatus:
        """Build the reader of a service's counts: waiting and failed events, and their ages."""
        return SqlStatus(self._connections.engine, self._connections.tables)

    def limits(self) -> SqlLimitStatus:
        """Build the reader of topics and partitions that are at their limits."""
        return SqlLimitStatus(self._connections.engine, self._connections.tables)

    def inbox(self, engine: Engine | None = None) -> SqlInboxStore:
        """Build the consumer's store of the inbox table; `engine` replaces the service's own."""
        return SqlInboxStore(
            engine or self._connections.engine,
            self._connections.tables,
            batch_bytes=self._settings.consumer_batch_bytes,
        )

    def unfinished_rows(self) -> UnfinishedRows:
        """Build the finder of the events that consumer groups have received and not finished."""
        return UnfinishedRows(
            self._connections.engine,
            self._connections.tables,
            batch_bytes=self._settings.consumer_batch_bytes,
        )

    def dead_owners(self) -> DeadOwners:
        """Build the finder of leases whose owners have died on this host."""
        return DeadOwners(self._connections.engine, self._connections.tables)

    def pauses(self) -> SqlPauseStore:
        """Build the store of paused handlers for a consumer's breaker."""
        return SqlPauseStore(self._connections.engine, self._connections.tables)

    def pause_admin(self) -> SqlPauseAdmin:
        """Build the store for an operator's view of paused handlers, and decisions about them."""
        return SqlPauseAdmin(self._connections.engine, self._connections.tables)

    def trace(self) -> SqlTraceStore:
        """Build the store of traced attempts, which also reads an event's rows in other tables."""
        return SqlTraceStore(self._connections.engine, self._connections.tables)

    def dead_letters(self) -> SqlDeadLetters:
        """Build the finder and replayer of events that wait for an operator."""
        return SqlDeadLetters(self._connections.engine, self._connections.tables)

    def discards(self) -> SqlDiscards:
        """Build the store that discards rows which will never be handled."""
        return SqlDiscards(self._connections.engine, self._connections.tables)

    def refusals(self, outbox: Outbox, reason: str) -> SqlRefusals:
        """Build the store that refuses parked events; `reason` is sent with their rollbacks."""

        def add_rollback(session: Session, event: Envelope) -> None:
            outbox.add_envelope(session, outbox.rollback_of(event, reason=reason))

        return SqlRefusals(
            self._connections.engine, self._connections.tables, add_rollback=add_rollback
        )

    def parked_replays(self) -> SqlParkedReplays:
        """Build the store that receives parked records again."""
        return SqlParkedReplays(self._connections.engine, self._connections.tables)

    def half_message_admin(self) -> SqlHalfMessageAdmin:
        """Build the store for an operator's view of half messages, and decisions about them."""
        return SqlHalfMessageAdmin(
            self._connections.engine,
            self._connections.tables,
            barrier_of=self._half_messages.barrier_to_ask,
            barrier_retention=self._settings.retention_barrier,
        )
