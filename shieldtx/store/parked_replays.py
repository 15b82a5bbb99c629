"""The replay of parked records: they are received again, as if they had just been fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from shieldtx.domain.events import Envelope, storable
from shieldtx.domain.states import InboxStatus
from shieldtx.errors import ConfigurationError, UndecodableRecord
from shieldtx.ports.inbox import IncomingEvent
from shieldtx.store.dead_letter_rows import ParkedRecord, parked_of
from shieldtx.store.dialects import dialect_of
from shieldtx.store.halving import is_refused, may_be_its_fault, refusal_of
from shieldtx.store.inbox_receiver import InboxReceiver
from shieldtx.store.statements import audit
from shieldtx.store.statements import parked as sql
from shieldtx.store.statements.discards import PARKED, parked_status
from shieldtx.store.tables import Tables

Check: TypeAlias = Callable[[ParkedRecord], IncomingEvent]
"""Decodes a record and checks its signature and its authority, as the consumer of its group does.

Raises UndecodableRecord for a record that must stay parked, and ConfigurationError where this
process cannot decide."""


class ReplayResult(StrEnum):
    """The result of the replay of one parked record."""

    RECEIVED = "RECEIVED"
    """The event is new in the inbox, and waits for its first attempt."""
    DUPLICATE = "DUPLICATE"
    """The group had received the event before; nothing happens again."""
    STILL_PARKED = "STILL_PARKED"
    """The record does not fit yet; its reason is the present one."""
    UNDECIDED = "UNDECIDED"
    """Nothing was changed: this process cannot check the record, or a purge hides duplicates."""
    NOT_WAITING = "NOT_WAITING"
    """The record was discarded or replayed before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkedReplay:
    """The result of the replay of one parked record."""

    record: ParkedRecord
    """The record as the operator saw it."""
    result: ReplayResult
    event_id: UUID | None = None
    problem: str = ""
    """Why the record was not received; empty if it was."""

    @property
    def done(self) -> bool:
        """Whether the record is no longer parked, by this replay."""
        return self.result in {ReplayResult.RECEIVED, ReplayResult.DUPLICATE}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """What an operator has ordered for all records."""

    check: Check
    who: str
    also_purged: bool


class SqlParkedReplays:
    """Receives parked records again for an operator, each with an audit entry."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._receiver = InboxReceiver(tables, self._dialect)
        self._lock = sql.lock_record(tables, self._dialect)
        self._note_reason = sql.note_reason(tables, self._dialect)
        self._remove = sql.remove_record(tables, self._dialect)
        self._audit = audit.entries(tables, self._dialect)

    def replay(
        self,
        records: Sequence[ParkedRecord],
        check: Check,
        *,
        who: str,
        also_purged: bool = False,
    ) -> Sequence[ParkedReplay]:
        """Receive the records that wait and pass `check`, in the order of their offsets.

        A record leaves `shield_parked` in the transaction that stores its event in the inbox. The
        event then waits there like a late record: after the open events of its key. Of an event
        that was written before the inbox was purged, the inbox cannot show whether it was handled:
        such records stay parked without `also_purged`.
        """
        # In a fixed order, so that two operators never wait for each other.
        in_order = sorted(records, key=_place)
        order = _Order(check=check, who=who, also_purged=also_purged)
        return [
            result
            for _, of_group in groupby(in_order, key=lambda parked: parked.group)
            for result in self._replay(list(of_group), order)
        ]

    def _replay(self, records: Sequence[ParkedRecord], order: _Order) -> list[ParkedReplay]:
        """Replay records of one group in one transaction; in halves if the database refuses one."""
        try:
            with self._engine.begin() as connection:
                return self._replay_together(connection, records, order)
        except (DBAPIError, MemoryError, UnicodeEncodeError) as error:
            if not may_be_its_fault(error) or (len(records) == 1 and not is_refused(error)):
                raise
            reason = f"the inbox refuses it: {refusal_of(error)}"
        if len(records) > 1:
            half = len(records) // 2
            parts = records[:half], records[half:]
            return [r for part in parts for r in self._replay(part, order)]
        with self._engine.begin() as connection:
            stored = self._locked(connection, records[0])
            if isinstance(stored, ParkedReplay):
                return [stored]
            return [self._keep(connection, stored, reason, order.who)]

    def _replay_together(
        self, connection: Connection, records: Sequence[ParkedRecord], order: _Order
    ) -> list[ParkedReplay]:
        results: dict[str, ParkedReplay] = {}
        fitting: list[tuple[ParkedRecord, IncomingEvent]] = []
        for parked in records:
            stored = self._locked(connection, parked)
            if isinstance(stored, ParkedReplay):
                results[parked.ref] = stored
                continue
            try:
                # Without a lease: the attempts are those of the workers.
                fitting.append((stored, order.check(stored)._replace(lease=None)))
            except UndecodableRecord as error:
                results[parked.ref] = self._keep(connection, stored, str(error), order.who)
            except ConfigurationError as error:
                results[parked.ref] = _undecided(stored, str(error))
        if not order.also_purged:
            purged_until = connection.scalar(sql.inbox_purged_until(self._tables))
            for parked, arrival in fitting:
                if purged_until is not None and _first_seen(parked, arrival) < purged_until:
                    results[parked.ref] = _undecided(parked, _purged(arrival, purged_until))
            fitting = [each for each in fitting if each[0].ref not in results]
        for result in self._receive(connection, fitting, order.who):
            results[result.record.ref] = result
        return [results[parked.ref] for parked in records]

    def _locked(self, connection: Connection, parked: ParkedRecord) -> ParkedRecord | ParkedReplay:
        """Lock a record that waits, and return it with its value."""
        row = connection.execute(self._lock, _which(parked)).one_or_none()
        if row is not None:
            return parked_of(row)
        statement = parked_status(
            self._tables, group=parked.group, record=parked.record, digest=parked.digest
        )
        status = connection.scalar(statement)
        problem = f"it is {status}" if status else "it is no longer parked"
        return ParkedReplay(record=parked, result=ReplayResult.NOT_WAITING, problem=problem)

    def _receive(
        self,
        connection: Connection,
        fitting: Sequence[tuple[ParkedRecord, IncomingEvent]],
        who: str,
    ) -> list[ParkedReplay]:
        if not fitting:
            return []
        group, arrivals = fitting[0][0].group, [arrival for _, arrival in fitting]
        receipt = self._receiver.receive(connection, group, arrivals, [])
        fresh = {(envelope.id, envelope.source) for envelope in receipt.fresh}
        conflicts = {id(each.record): each.reason for each in receipt.parked}
        results, removed, notes = [], [], []
        for parked, (envelope, record, _) in fitting:
            if (reason := conflicts.get(id(record))) is not None:
                results.append(self._keep(connection, parked, reason, who))
                continue
            # Of several records of one event, the first is received.
            is_new = (envelope.id, envelope.source) in fresh
            fresh.discard((envelope.id, envelope.source))
            result = ReplayResult.RECEIVED if is_new else ReplayResult.DUPLICATE
            to = InboxStatus.INIT.value if is_new else ReplayResult.DUPLICATE.value
            removed.append(_which(parked))
            notes.append(_note_of(parked, who, _detail_of(envelope) | {"to": to}))
            results.append(ParkedReplay(record=parked, result=result, event_id=envelope.id))
        if removed:
            connection.execute(self._remove, removed)
            connection.execute(self._audit, notes)
        return results

    def _keep(
        self, connection: Connection, parked: ParkedRecord, reason: str, who: str
    ) -> ParkedReplay:
        """Leave a record parked with the present reason, which is audited if it is another one."""
        if reason != parked.reason:
            text = storable(reason)
            connection.execute(self._note_reason, _which(parked) | {sql.REASON: text})
            note = _note_of(parked, who, {"to": PARKED, "new_reason": text})
            connection.execute(self._audit, [note])
        return ParkedReplay(
            record=replace(parked, reason=reason),
            result=ReplayResult.STILL_PARKED,
            problem=reason,
        )


def _note_of(parked: ParkedRecord, who: str, detail: dict[str, Any]) -> dict[str, str]:
    record = parked.record
    known = {
        "from": PARKED,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "reason": parked.reason,
    }
    return {
        "who": who,
        "action": "replay",
        "subject": str(parked),
        "detail": json.dumps(known | detail, ensure_ascii=False),
    }


def _place(parked: ParkedRecord) -> tuple[Any, ...]:
    record = parked.record
    return parked.group, record.topic, record.partition, record.offset, parked.digest


def _which(parked: ParkedRecord) -> dict[str, Any]:
    return sql.record_parameters(group=parked.group, record=parked.record, digest=parked.digest)


def _first_seen(parked: ParkedRecord, arrival: IncomingEvent) -> datetime:
    """Return the earliest time at which the group can have received the event."""
    return min(parked.parked_at, arrival.envelope.time)


def _purged(arrival: IncomingEvent, until: datetime) -> str:
    return (
        f"event {arrival.envelope.id} was written before {until.isoformat()}, up to which the "
        "inbox is purged: the group may have handled it, and would handle it again. Find out "
        "whether its effect is there; --also-purged replays it"
    )


def _undecided(parked: ParkedRecord, problem: str) -> ParkedReplay:
    return ParkedReplay(record=parked, result=ReplayResult.UNDECIDED, problem=problem)


def _detail_of(envelope: Envelope) -> dict[str, Any]:
    return {
        "event_id": str(envelope.id),
        "event_type": envelope.type,
        "kind": envelope.kind,
        "source": envelope.source,
    }
