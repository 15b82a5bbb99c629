"""The order of keys in the databases: the events that were sent, and that groups received."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Select

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.ports.hand_over import Arrival, EventPosition, Key, LaterPositions, Sibling
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import hand_over as sql
from shieldtx.store.tables import Tables

FoundT = TypeVar("FoundT")

_FETCHED: Final = 10_000
"""The most rows of a large result that the driver holds at once."""


class KeyOrders:
    """Reads the order of keys, over open connections."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect

    # --- the outbox of the service that wrote the events -----------------------------------------

    def positions(
        self, connection: Connection, ids: Collection[UUID]
    ) -> Mapping[UUID, EventPosition]:
        """Return the positions of these events in the outbox."""
        statement = sql.positions(self._tables, self._dialect, sorted(set(ids)))
        return {
            row.event_id: EventPosition(
                seq=row.seq,
                kind=TxKind(row.tx_kind),
                type=row.event_type,
                topic=row.topic,
                key=row.key,
                written_at=row.created_at,
                delayed_until=row.delayed_until,
                unconfirmed=row.unconfirmed,
                size=row.size,
            )
            for row in connection.execute(statement)
        }

    def siblings(
        self,
        connection: Connection,
        source: str,
        keys: Collection[Key],
        *,
        since: datetime | None,
        later: LaterPositions | None,
    ) -> Iterator[Sibling]:
        """Yield the events of a source and these keys that were sent, or are to be sent."""
        wanted = set(keys)
        topics, names = _parted(wanted)
        statement = sql.siblings(
            self._tables,
            self._dialect,
            source=source,
            topics=topics,
            keys=names,
            since=since,
            later=later,
        )
        for row in _streamed(connection, statement):
            key = row.topic, row.key
            if key in wanted:
                yield Sibling(
                    event_id=row.event_id,
                    type=row.event_type,
                    ordered_by=key,
                    is_sent=row.status == OutboxStatus.PROCESSED,
                    settled_at=row.settled_at,
                    unconfirmed=row.unconfirmed,
                    seq=row.seq,
                    written_at=row.created_at,
                    delayed_until=row.delayed_until,
                )

    # --- the inbox of a group --------------------------------------------------------------------

    def latest_received(
        self,
        connection: Connection,
        group: str,
        source: str,
        keys: Collection[Key],
    ) -> Mapping[Key, datetime]:
        """Return when the latest event of these keys that a group has received was written."""
        return self._by_key(connection, sql.latest_received, keys, group=group, source=source)

    def received_after(
        self,
        connection: Connection,
        group: str,
        source: str,
        after: Mapping[Key, datetime],
        since: datetime | None,
    ) -> Iterator[Arrival]:
        """Yield the events of these keys that a group received, written at `after` or later."""

        def read(keys: Collection[Key]) -> Iterator[Any]:
            topics, names = _parted(keys)
            statement = sql.received_after(
                self._tables,
                self._dialect,
                group=group,
                source=source,
                topics=topics,
                keys=names,
                after=min(after.values()),
                since=since,
            )
            return _streamed(connection, statement)

        nothing: Iterator[Any] = iter(())
        for row in _as_far_as_encoded(read, after.keys(), nothing):
            key = row.topic, row.key
            if key in after and row.event_time >= after[key]:
                yield Arrival(event_id=row.event_id, ordered_by=key, written_at=row.event_time)

    def count_received(
        self,
        connection: Connection,
        group: str,
        source: str,
        keys: Collection[Key],
        since: datetime,
    ) -> Mapping[Key, int]:
        """Return by key how many events that a group received are open or settled since then."""
        given = {"group": group, "source": source, "since": since}
        return self._by_key(connection, sql.count_received, keys, **given)

    def _by_key(
        self,
        connection: Connection,
        select: Callable[..., Select[Any]],
        keys: Collection[Key],
        **given: Any,
    ) -> Mapping[Key, Any]:
        """Return the value that a statement selects for each of these keys."""

        def read(keys: Collection[Key]) -> dict[Key, Any]:
            topics, names = _parted(keys)
            statement = select(self._tables, self._dialect, topics=topics, keys=names, **given)
            return {(topic, key): value for topic, key, value in connection.execute(statement)}

        return _as_far_as_encoded(read, keys, {})


def _parted(keys: Collection[Key]) -> tuple[list[str], list[str]]:
    return sorted({topic for topic, _ in keys}), sorted({key for _, key in keys})


def _streamed(connection: Connection, statement: Any) -> Iterator[Any]:
    return iter(connection.execution_options(yield_per=_FETCHED).execute(statement))


def _as_far_as_encoded(
    read: Callable[[Collection[Key]], FoundT], keys: Collection[Key], nothing: FoundT
) -> FoundT:
    """Read keys; an inbox has no event of a key that the database's encoding cannot represent."""
    try:
        return read(keys)
    except UnicodeEncodeError as error:
        possible = [key for key in keys if is_in(error.encoding, "".join(key))]
        return read(possible) if possible else nothing


def is_in(encoding: str, text: str) -> bool:
    """Whether an encoding has all letters of a text."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
