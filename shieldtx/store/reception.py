"""How records become rows: of the inbox, or parked."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Result

from shieldtx.events import Envelope
from shieldtx.ports import Arrival, Attempt, Parked, Receipt
from shieldtx.states import TxKind
from shieldtx.store.dialects import StoreDialect
from shieldtx.store.statements import reception as sql
from shieldtx.store.statements.envelopes import columns_of
from shieldtx.store.statements.inbox import batch_parameters
from shieldtx.store.tables import Tables

Identity = tuple[int, str]
"""The number of an event's id, and its source: what a group dedupes on."""

Key = tuple[str, str | None]
"""A topic and an event's key: what keeps its order."""


class Reception:
    """Stores what is new of a batch of records, and starts those whose turn it is."""

    def __init__(self, tables: Tables, dialect: StoreDialect) -> None:
        self._tables = tables
        self._dialect = dialect
        self._open_keys = sql.open_keys(tables, dialect)
        self._receive = sql.receive(tables, dialect)
        self._release_held_back = sql.release_held_back(tables, dialect)

    def receive(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[Arrival],
        parked: Sequence[Parked],
    ) -> Receipt:
        """Store a batch in the open transaction; the unique keys decide what is new."""
        token = uuid4()
        identities = [_identity(arrival.envelope) for arrival in arrivals]
        leases = self._leases(connection, group, arrivals, identities)
        new = self._insert(connection, group, arrivals, map(leases.get, identities), token)
        fresh: dict[Identity, Arrival] = {}
        old: list[Arrival] = []
        for identity, arrival in zip(identities, arrivals, strict=True):
            if identity in new and identity not in fresh:
                fresh[identity] = arrival
            else:
                old.append(arrival)
        started = {identity: a for identity, a in fresh.items() if identity in leases}
        if old:
            # The INSERT waited for whoever stored them, perhaps with other rows of their keys.
            for identity in self._released(connection, group, started, token):
                del started[identity]
        strangers = self._strangers(connection, group, old)
        self._park(connection, group, [*parked, *strangers])
        return Receipt(
            fresh=[arrival.envelope for arrival in fresh.values()],
            started=[
                Attempt(
                    envelope=arrival.envelope,
                    group=group,
                    number=1,
                    token=token,
                    place=(arrival.record.partition, arrival.record.offset),
                )
                for arrival in started.values()
            ],
            duplicates=len(old) - len(strangers),
            parked=len(parked) + len(strangers),
        )

    def _leases(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[Arrival],
        identities: Sequence[Identity],
    ) -> dict[Identity, float]:
        """Choose what is started with this batch: that before which no row of its key is open."""
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
            # Statements on a batch know its rows by their ids alone.
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
        arrivals: Sequence[Arrival],
        leases: Iterable[float | None],
        token: UUID,
    ) -> set[Identity]:
        if not arrivals:
            return set()
        columns = columns_of([arrival.envelope for arrival in arrivals]) | {
            "event_time": [arrival.envelope.time for arrival in arrivals],
            "record_partition": [arrival.record.partition for arrival in arrivals],
            "record_offset": [arrival.record.offset for arrival in arrivals],
            sql.LEASE: list(leases),
        }
        given = self._dialect.many(columns, **{sql.GROUP: group, sql.TOKEN: token})
        return _identities(connection.execute(self._receive, given))

    def _released(
        self,
        connection: Connection,
        group: str,
        started: Mapping[Identity, Arrival],
        token: UUID,
    ) -> set[Identity]:
        if not started:
            return set()
        ids = [arrival.envelope.id for arrival in started.values()]
        given = batch_parameters(group, ids, token)
        return _identities(connection.execute(self._release_held_back, given))

    def _strangers(
        self, connection: Connection, group: str, old: Sequence[Arrival]
    ) -> list[Parked]:
        """Find those that are no redelivery: another event with their business key came before."""
        ids = [a.envelope.id for a in old if _may_be_stranger(a.envelope)]
        if not ids:
            return []
        statement = sql.known(self._tables, self._dialect, group, ids)
        known = _identities(connection.execute(statement))
        return [
            Parked(
                record=arrival.record,
                reason=f"business key {arrival.envelope.biz_key!r} of event type "
                f"{arrival.envelope.type!r} was received before, in another event",
            )
            for arrival in old
            if _may_be_stranger(arrival.envelope) and _identity(arrival.envelope) not in known
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
                "reason": p.reason,
                "record_key": p.record.key,
                "record_value": p.record.value,
                "record_headers": json.dumps(
                    [
                        [name, None if value is None else base64.b64encode(value).decode()]
                        for name, value in p.record.headers
                    ]
                ),
            }
            for p in parked
        ]
        connection.execute(sql.park(self._tables, self._dialect), rows)


def _identity(envelope: Envelope) -> Identity:
    return envelope.id.int, envelope.source


def _identities(result: Result[*tuple[Any, ...]]) -> set[Identity]:
    return {(row[0].int, row[1]) for row in result.all()}


def _may_be_stranger(envelope: Envelope) -> bool:
    return envelope.biz_key is not None and envelope.kind is TxKind.COMMIT
