"""Receiving in memory, as on PostgreSQL: in one transaction, which may wait in the middle."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.inbox import Attempt, IncomingEvent, Parked, Receipt
from tests.verification.simulation.database import Change, Database, InboxRow, Transaction

BUSINESS_KEY = "business key"
"""The first part of a lock on an event's other unique key."""


class MemoryReceiver:
    """Stores the new events of a batch, and starts the unblocked ones; `by` is the process."""

    def __init__(self, database: Database, *, by: str) -> None:
        self._database = database
        self._by = by

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch; the unique keys decide what is new."""
        db = self._database
        # Chosen before the rows are inserted, which may wait.
        leases, token = self._leases(group, arrivals), db.next_token()
        with db.transaction() as transaction:
            new, known, foreign_records = self._insert(transaction, group, arrivals, leases, token)
            if known or foreign_records:
                self._release_blocked(new.values())
            for p in (*parked, *foreign_records):
                self._park(transaction, group, p)
        return Receipt(
            fresh=[row.envelope for row in new.values()],
            started=[
                Attempt(envelope=row.envelope, group=group, number=1, token=token)
                for row in new.values()
                if row.together
            ],
            duplicates=known,
            parked=[*parked, *foreign_records],
        )

    def new_row(
        self, group: str, envelope: Envelope, status: InboxStatus, lease: float | None = None
    ) -> InboxRow:
        """Make a row; its sequence number is assigned now, at the insert."""
        db = self._database
        starts = lease is not None
        return InboxRow(
            envelope=envelope,
            group=group,
            seq=db.next_in_sequence(),
            due_at=db.now,
            status=InboxStatus.PROCESSING if starts else status,
            attempts=1 if starts else 0,
            together=starts,
            lease_until=None if lease is None else db.now + lease,
            settled_at=db.now if status is InboxStatus.FENCED else None,
        )

    def commit(self, row: InboxRow) -> None:
        """Make a row visible to all."""
        db, key = self._database, key_of(row.group, row.envelope)
        db.inbox[key] = row
        born = Change("inbox", row.envelope.id, row.group, None, row.status, self._by, None)
        db.history.append(born)
        if row.together:
            db.holders[key] = self._by

    def _leases(self, group: str, arrivals: Sequence[IncomingEvent]) -> dict[Hashable, float]:
        """Choose the events to start: those without an earlier open row of their key."""
        closed = {
            (row.envelope.topic, row.envelope.key) for row in open_rows(self._database, group)
        }
        leases: dict[Hashable, float] = {}
        ids: set[UUID] = set()
        for arrival in arrivals:
            envelope = arrival.envelope
            key, place = key_of(group, envelope), (envelope.topic, envelope.key)
            if key in leases:
                continue
            waits = envelope.key is not None and place in closed
            if arrival.lease is None or waits or envelope.id in ids:
                closed.add(place)
            else:
                ids.add(envelope.id)
                leases[key] = arrival.lease.total_seconds()
        return leases

    def _insert(
        self,
        transaction: Transaction,
        group: str,
        arrivals: Sequence[IncomingEvent],
        leases: Mapping[Hashable, float],
        token: UUID,
    ) -> tuple[dict[Hashable, InboxRow], int, list[Parked]]:
        """Insert what no unique key has; return it, the number of known events, and the rest."""
        db = self._database
        new: dict[Hashable, InboxRow] = {}
        known, foreign_records = 0, []
        for arrival in arrivals:
            envelope = arrival.envelope
            key, business_key = key_of(group, envelope), business_key_of(group, envelope)
            for unique in (key, business_key):
                db.free_for_insert(unique, transaction)
            if key in db.inbox or key in new:
                known += 1
            elif business_key is not None and any(
                business_key_of(row.group, row.envelope) == business_key
                for row in (*db.inbox.values(), *new.values())
            ):
                foreign_records.append(Parked(record=arrival.record, reason="business key"))
            else:
                row = new[key] = self.new_row(group, envelope, InboxStatus.INIT, leases.get(key))
                row.token = token if row.together else None
                transaction.lock(key, writes=True)
                if business_key is not None:
                    transaction.lock(business_key, writes=True)
                transaction.write(partial(self.commit, row))
        return new, known, foreign_records

    def _release_blocked(self, new: Collection[InboxRow]) -> None:
        """Withdraw the start of rows that follow a row for which this transaction has waited."""
        for row in new:
            if row.together and any(
                earlier.seq < row.seq
                and row.envelope.key is not None
                and (earlier.envelope.topic, earlier.envelope.key)
                == (row.envelope.topic, row.envelope.key)
                for earlier in open_rows(self._database, row.group)
            ):
                row.attempts, row.together = 0, False
                row.token = row.lease_until = None

    def _park(self, transaction: Transaction, group: str, parked: Parked) -> None:
        db, r = self._database, parked.record
        place = (group, r.topic, r.partition, r.offset)
        db.free_for_insert(place, transaction)
        if place not in db.parked:
            transaction.lock(place, writes=True)
            transaction.write(partial(db.parked.setdefault, place, parked.reason))


def key_of(group: str, envelope: Envelope) -> tuple[str, UUID, str]:
    """Return the key by which a group detects duplicates of an event."""
    return (group, envelope.id, envelope.source)


def open_rows(database: Database, group: str) -> list[InboxRow]:
    """Return a group's rows that are not settled, in the order of arrival."""
    rows = [row for row in database.inbox.values() if row.settled_at is None and row.group == group]
    rows.sort(key=lambda row: row.seq)
    return rows


def business_key_of(group: str, envelope: Envelope) -> Hashable:
    """Return the other unique key of an event; None without one."""
    if envelope.biz_key is None or envelope.kind is not TxKind.COMMIT:
        return None
    return (BUSINESS_KEY, group, envelope.source, envelope.type, envelope.biz_key)
