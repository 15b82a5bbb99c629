"""Reception: records become rows of the inbox, or parked records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Result

from shieldtx._process_tokens import process_token
from shieldtx.domain.events import Envelope
from shieldtx.domain.external_ids import digest_of
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Attempt, IncomingEvent, Parked, Receipt
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import receive as sql
from shieldtx.store.statements.envelope_columns import columns_of
from shieldtx.store.statements.inbox import batch_parameters
from shieldtx.store.tables import Tables

_INSERT_CHARACTERS: Final = 8 * 1024 * 1024

Identity = tuple[int, str]
"""The number of an event's id, and its source, by which a group detects duplicates."""

Key = tuple[str, str | None]
"""A topic and an event's key, which determine the order."""


class InboxReceiver:
    """Stores the new events of a batch of records, and starts events that no open row precedes."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect
        self._open_keys = sql.open_keys(tables, dialect)
        self._receive = sql.receive(tables, dialect)
        self._release_blocked = sql.release_blocked(tables, dialect)

    def receive(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[IncomingEvent],
        parked: Sequence[Parked],
    ) -> Receipt:
        """Store a batch in the open transaction; the unique keys decide what is new."""
        token = process_token()
        identities = [_identity(arrival.envelope) for arrival in arrivals]
        leases = self._leases(connection, group, arrivals, identities)
        new = self._insert(connection, group, arrivals, map(leases.get, identities), token)
        fresh: dict[Identity, IncomingEvent] = {}
        old: list[IncomingEvent] = []
        for identity, arrival in zip(identities, arrivals, strict=True):
            if identity in new and identity not in fresh:
                fresh[identity] = arrival
            else:
                old.append(arrival)
        started = {identity: a for identity, a in fresh.items() if identity in leases}
        if old:
            # The INSERT waited for the transaction that stored these events. That transaction may
            # have stored other rows of their keys too.
            for identity in self._released(connection, group, started, token):
                del started[identity]
        conflicts = self._business_key_conflicts(connection, group, old)
        parked = [*parked, *conflicts]
        self._park(connection, group, parked)
        return Receipt(
            fresh=[arrival.envelope for arrival in fresh.values()],
            started=[
                Attempt(
                    envelope=arrival.envelope,
                    group=group,
                    number=1,
                    token=token,
                    partition=arrival.record.partition,
                    offset=arrival.record.offset,
                )
                for arrival in started.values()
            ],
            duplicates=len(old) - len(conflicts),
            parked=parked,
        )

    def _leases(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[IncomingEvent],
        identities: Sequence[Identity],
    ) -> dict[Identity, float]:
        """Choose the events that start with this batch: no open row of their key precedes them."""
        keyed = [a.envelope for a in arrivals if a.lease and a.envelope.key is not None]
        closed: set[Key] = set()
        if keyed:
            given = {
                sql.GROUP: group,
                "topics": list({e.topic for e in keyed}),
                "keys": list({e.key for e in keyed}),
            }
            rows = connection.execute(self._open_keys, given)
            closed = {(topic, key) for topic, key in rows}
        leases: dict[Identity, float] = {}
        ids: set[int] = set()
        for identity, arrival in zip(identities, arrivals, strict=True):
            if identity in leases:
                continue
            envelope = arrival.envelope
            key = envelope.topic, envelope.key
            # Statements on a batch find rows by their ids alone.
            if arrival.lease is None or key in closed or identity[0] in ids:
                if envelope.key is not None:
                    closed.add(key)
                continue
            ids.add(identity[0])
            leases[identity] = arrival.lease.total_seconds()
        return leases

    def _insert(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[IncomingEvent],
        leases: Iterable[float | None],
        token: UUID,
    ) -> set[Identity]:
        leases = list(leases)
        new: set[Identity] = set()
        for part in _parts(arrivals):
            new |= self._insert_part(connection, group, arrivals[part], leases[part], token)
        return new

    def _insert_part(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[IncomingEvent],
        leases: Sequence[float | None],
        token: UUID,
    ) -> set[Identity]:
        columns = columns_of([arrival.envelope for arrival in arrivals]) | {
            "event_time": [arrival.envelope.time for arrival in arrivals],
            "record_partition": [arrival.record.partition for arrival in arrivals],
            "record_offset": [arrival.record.offset for arrival in arrivals],
            sql.LEASE: list(leases),
        }
        given = self._dialect.rows_parameters(columns, **{sql.GROUP: group, sql.TOKEN: token})
        return _identities(connection.execute(self._receive, given))

    def _released(
        self,
        connection: Connection,
        group: str,
        started: Mapping[Identity, IncomingEvent],
        token: UUID,
    ) -> set[Identity]:
        if not started:
            return set()
        ids = [arrival.envelope.id for arrival in started.values()]
        given = batch_parameters(group, ids, token)
        return _identities(connection.execute(self._release_blocked, given))

    def _business_key_conflicts(
        self, connection: Connection, group: str, old: Sequence[IncomingEvent]
    ) -> list[Parked]:
        """Find different events that reuse a business key: they are not redeliveries."""
        ids = [a.envelope.id for a in old if _may_conflict(a.envelope)]
        if not ids:
            return []
        statement = sql.known(self._tables, self._dialect, group, ids)
        known = _identities(connection.execute(statement))
        return [
            Parked(
                record=arrival.record,
                # Without the key, which may be customer data: the reason is logged.
                reason=f"business key of event type {arrival.envelope.type!r} was received before, "
                "in another event",
            )
            for arrival in old
            if _may_conflict(arrival.envelope) and _identity(arrival.envelope) not in known
        ]

    def _park(self, connection: Connection, group: str, parked: Sequence[Parked]) -> None:
        if not parked:
            return
        rows = [
            {
                "consumer_group": group,
                "topic": p.record.topic,
                "record_partition": p.record.partition,
                "record_offset": p.record.offset,
                "digest": digest_of(p.record.key, p.record.value, headers.encode()),
                "reason": p.reason,
                "record_key": p.record.key,
                "record_value": p.record.value,
                "record_headers": headers,
            }
            for p in parked
            for headers in (_headers_text(p.record),)
        ]
        connection.execute(sql.park(self._tables, self._dialect), rows)


def _parts(arrivals: Sequence[IncomingEvent]) -> Iterator[slice]:
    """Cut a batch into one part per INSERT, because the driver copies all payloads."""
    start, size = 0, 0
    for number, arrival in enumerate(arrivals):
        size += len(arrival.envelope.payload)
        if size >= _INSERT_CHARACTERS:
            yield slice(start, number + 1)
            start, size = number + 1, 0
    if start < len(arrivals):
        yield slice(start, len(arrivals))


def _headers_text(record: ReceivedRecord) -> str:
    return json.dumps(
        [
            [name, None if value is None else base64.b64encode(value).decode()]
            for name, value in record.headers
        ]
    )


def _identity(envelope: Envelope) -> Identity:
    return envelope.id.int, envelope.source


def _identities(result: Result[*tuple[Any, ...]]) -> set[Identity]:
    return {(row[0].int, row[1]) for row in result.all()}


def _may_conflict(envelope: Envelope) -> bool:
    return envelope.biz_key is not None and envelope.kind is TxKind.COMMIT
