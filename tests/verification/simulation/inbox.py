"""The inbox port in memory, as the SQL store does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import INBOX, InboxStatus, TxKind
from shieldtx.errors import LeaseLost
from shieldtx.ports.inbox import Attempt, Handled, IncomingEvent, Origin, Original, Parked, Receipt
from tests.verification.simulation.database import (
    COMPENSATES,
    Change,
    Database,
    DatabaseError,
    InboxRow,
    Transaction,
)

_MAY_START = INBOX.sources_of(
    InboxStatus.PROCESSING, among=(InboxStatus.INIT, InboxStatus.PROCESSING)
)
_SOURCES = {
    target: INBOX.sources_of(target, among=(InboxStatus.PROCESSING,))
    for target in (
        InboxStatus.PROCESSING,
        InboxStatus.PROCESSED,
        InboxStatus.MAX_RECONSUMED,
        InboxStatus.DEAD,
    )
}

_COMPENSATED = "compensated"
"""In the `info` of a transaction: the event that is compensated in it."""


class UniqueViolation(DatabaseError):
    """A unique key is taken."""


class MemoryInboxStore:
    """Receives, leases and settles inbox rows (the port InboxStore); `by` is the process."""

    def __init__(self, database: Database, *, by: str = "") -> None:
        self._database = database
        self._by = by

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new."""
        db = self._database
        for arrival in arrivals:
            db.free(_key(group, arrival.envelope))
        fresh: list[Envelope] = []
        started: list[Attempt] = []
        strangers: list[Parked] = []
        duplicates = 0
        leases, token = self._leases(group, arrivals), db.next_token()
        for arrival in arrivals:
            envelope = arrival.envelope
            if _key(group, envelope) in db.inbox:
                duplicates += 1
            elif self._business_key_is_taken(group, envelope):
                strangers.append(Parked(record=arrival.record, reason="business key"))
            else:
                row = self._insert(
                    group, envelope, InboxStatus.INIT, leases.get(_key(group, envelope))
                )
                fresh.append(envelope)
                if row.together:
                    row.token = token
                    started.append(Attempt(envelope=envelope, group=group, number=1, token=token))
        for p in (*parked, *strangers):
            r = p.record
            db.parked.setdefault((group, r.topic, r.partition, r.offset), p.reason)
        return Receipt(
            fresh=fresh,
            started=started,
            duplicates=duplicates,
            parked=len(parked) + len(strangers),
        )

    def due(self, group: str, *, handled: Handled, limit: int) -> Sequence[Envelope]:
        """Return rows whose turn it is, in the order of arrival."""
        rows = [row for row in self._open(group) if self._is_free(row) and _of(row) in handled]
        return [row.envelope for row in rows if not self._is_held_back(row)][:limit]

    def pending(self, group: str, *, handled: Handled) -> Mapping[Origin, int]:  # noqa: ARG002  as the port
        """Count nothing: the shapes are far below every limit."""
        return {}

    def unhandled(
        self, group: str, *, handled: Handled, limit: int
    ) -> Mapping[tuple[str, TxKind], int]:
        """Count what is open and not handled, by type and kind."""
        rows = [_of(row) for row in self._open(group) if _of(row) not in handled]
        return Counter(rows[:limit])

    def start_attempt(
        self, group: str, envelope: Envelope, *, lease: timedelta, max_attempts: int
    ) -> Attempt | None:
        """Count an attempt, if it is the row's turn and no transaction is at work on it."""
        db = self._database
        key = _key(group, envelope)
        row = db.inbox.get(key)
        if (
            row is None
            or row.settled_at is not None
            or key in db.locks
            or row.status not in _MAY_START
            or not self._is_free(row)
            or self._is_held_back(row)
        ):
            return None
        db.move_inbox(row, InboxStatus.PROCESSING, self._by)
        self._count(row)
        row.token = token = db.next_token()
        row.lease_until = db.now + lease.total_seconds()
        if row.attempts <= max_attempts:
            db.turns[key] += 1
        return Attempt(
            envelope=envelope,
            group=group,
            number=min(row.attempts, max_attempts),
            token=token,
            exhausted=row.attempts > max_attempts,
        )

    @contextmanager
    def effect(self, attempt: Attempt) -> Iterator[Transaction]:
        """Open the transaction that holds PROCESSED and the handler's writes."""
        with self._database.transaction() as transaction:
            row = self._carrying(attempt, InboxStatus.PROCESSED)
            if row is None:
                raise LeaseLost(f"{attempt.envelope.id} was taken over")
            transaction.lock(_key(attempt.group, attempt.envelope))

            def settle() -> None:
                self._settle(row, InboxStatus.PROCESSED)
                row.last_error = None

            transaction.write(settle)
            yield transaction
            self._note_compensated(transaction, attempt)

    @contextmanager
    def effects(self, attempts: Sequence[Attempt]) -> Iterator[Transaction]:
        """Open such a transaction for attempts that were started together: all or none."""
        with self._database.transaction() as transaction:
            rows = self._all_carrying(attempts, InboxStatus.PROCESSED)
            if len(rows) < len(attempts):
                raise LeaseLost("some were taken over")
            for row in rows:
                transaction.lock(_key(row.group, row.envelope))

            def settle() -> None:
                for row in rows:
                    self._settle(row, InboxStatus.PROCESSED)
                    row.last_error = None

            transaction.write(settle)
            yield transaction

    def reset_session(self, session: Transaction) -> None:
        """Know nothing of sessions that have to be cleared."""
        session.require()

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Take back the counted start of attempts, of those that still own their row."""
        for row in self._all_carrying(attempts, InboxStatus.PROCESSING):
            self._database.move_inbox(row, InboxStatus.PROCESSING, self._by)
            self._database.turns[_key(row.group, row.envelope)] -= not row.together
            self._uncount(row)
            row.token = row.lease_until = None

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Let the row wait for its next attempt."""
        row = self._carrying(attempt, InboxStatus.PROCESSING)
        if row is None:
            return False
        self._database.move_inbox(row, InboxStatus.PROCESSING, self._by)
        self._note_its_own(row)
        row.token = row.lease_until = None
        row.due_at = self._database.now + delay.total_seconds()
        row.last_error = reason
        return True

    def note(self, attempts: Sequence[Attempt], *, reason: str) -> None:
        """Write down why the process of these attempts ends."""
        for row in self._all_carrying(attempts, InboxStatus.PROCESSING):
            row.last_error = reason

    def give_up(
        self, attempt: Attempt, *, reason: str, in_transaction: Callable[[Transaction], Any] | None
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, with `in_transaction` in its transaction."""
        is_rollback = attempt.envelope.kind is TxKind.ROLLBACK
        target = InboxStatus.DEAD if is_rollback else InboxStatus.MAX_RECONSUMED
        row = self._carrying(attempt, target)
        if row is None:
            return False
        with self._database.transaction() as transaction:
            transaction.lock(_key(attempt.group, attempt.envelope))

            def settle() -> None:
                self._note_its_own(row)
                self._settle(row, target)
                row.attempts, row.last_error = attempt.number, reason

            transaction.write(settle)
            if in_transaction is not None:
                in_transaction(transaction)
        return True

    def original(
        self, session: Transaction, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        """Find and lock what a rollback takes back."""
        db, rollback = self._database, attempt.envelope
        original_id = rollback.causation_id
        if original_id is None:
            return None
        status = None
        if written_here:
            written = db.outbox.get(original_id)
            if written is None or written.envelope.kind is not TxKind.COMMIT:
                return None
            if rollback.causation_source not in {written.envelope.source, None}:
                return None
            session.lock((COMPENSATES, attempt.group, original_id))
            envelope = written.envelope
        else:
            key = (attempt.group, original_id, rollback.causation_source or "")
            received = db.inbox.get(key)
            if received is None or received.envelope.kind is not TxKind.COMMIT:
                return None
            if not session.holds(key):
                session.lock(key)
            envelope, status = received.envelope, received.status
        return Original(
            envelope=envelope,
            status=status,
            compensated=any(
                row.group == attempt.group and row.compensated_id == original_id
                for row in db.inbox.values()
            ),
        )

    def mark_compensated(self, session: Transaction, attempt: Attempt) -> None:
        """Have the rollback's row name its original when it is settled."""
        original_id = attempt.envelope.causation_id
        if original_id is not None:
            session.info[_COMPENSATED] = original_id

    def _note_compensated(self, session: Transaction, attempt: Attempt) -> None:
        """Name the original in the row that is settled; raises UniqueViolation for a second row."""
        db, original_id = self._database, session.info.get(_COMPENSATED)
        if original_id is None:
            return
        if any(
            row.group == attempt.group and row.compensated_id == original_id
            for row in db.inbox.values()
        ):
            raise UniqueViolation("UNIQUE constraint failed: compensated_id")
        session.lock(("compensated", attempt.group, original_id))
        row = db.inbox[_key(attempt.group, attempt.envelope)]

        def note() -> None:
            row.compensated_id = original_id

        session.write(note)

    def fence(self, session: Transaction, attempt: Attempt) -> bool:
        """Leave the tombstone of an event whose rollback came first."""
        rollback = attempt.envelope
        if rollback.causation_id is None or rollback.causation_source is None:
            return False
        tombstone = rollback.evolve(
            id=rollback.causation_id,
            source=rollback.causation_source,
            kind=TxKind.COMMIT,
            biz_key=None,
            payload="null",
            causation_id=rollback.id,
            causation_source=rollback.source,
        )
        key = _key(attempt.group, tombstone)
        if key in self._database.inbox or session.holds(key):
            return False
        session.lock(key)
        session.write(lambda: self._insert(attempt.group, tombstone, InboxStatus.FENCED))
        return True

    def cause(self, session: Transaction, envelope: Envelope) -> Envelope | None:
        """Return the received event, or rollback, whose handler wrote `envelope`."""
        session.require()
        for row in self._database.inbox.values():
            received = row.envelope
            if (
                envelope.causation_id == received.id
                and envelope.causation_source == received.source
            ):
                return received
        return None

    def _leases(self, group: str, arrivals: Sequence[IncomingEvent]) -> dict[Hashable, float]:
        """Choose what is started: that before which no row of its key is open."""
        closed = {(row.envelope.topic, row.envelope.key) for row in self._open(group)}
        leases: dict[Hashable, float] = {}
        ids: set[UUID] = set()
        for arrival in arrivals:
            envelope = arrival.envelope
            key, place = _key(group, envelope), (envelope.topic, envelope.key)
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
        self, group: str, envelope: Envelope, status: InboxStatus, lease: float | None = None
    ) -> InboxRow:
        db, key = self._database, _key(group, envelope)
        starts = lease is not None
        row = db.inbox[key] = InboxRow(
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
        db.history.append(Change("inbox", envelope.id, group, None, row.status, self._by, None))
        if starts:
            db.holders[key] = self._by
        return row

    def _count(self, row: InboxRow) -> None:
        """Count an attempt, but not again one that may have died of a neighbour's."""
        row.attempts += 0 if row.together else 1
        row.together = False

    def _uncount(self, row: InboxRow) -> None:
        row.attempts -= 1
        row.together = False

    def _note_its_own(self, row: InboxRow) -> None:
        """An attempt in a batch has failed, and the row is the one at fault."""
        self._database.turns[_key(row.group, row.envelope)] += row.together
        row.together = False

    def _business_key_is_taken(self, group: str, envelope: Envelope) -> bool:
        return (
            envelope.biz_key is not None
            and envelope.kind is TxKind.COMMIT
            and any(
                row.group == group
                and row.envelope.source == envelope.source
                and row.envelope.type == envelope.type
                and row.envelope.biz_key == envelope.biz_key
                and row.envelope.kind is TxKind.COMMIT
                for row in self._database.inbox.values()
            )
        )

    def _open(self, group: str) -> list[InboxRow]:
        rows = [
            row
            for row in self._database.inbox.values()
            if row.settled_at is None and row.group == group
        ]
        rows.sort(key=lambda row: row.seq)
        return rows

    def _is_free(self, row: InboxRow) -> bool:
        now = self._database.now
        return row.due_at <= now and (row.lease_until is None or row.lease_until <= now)

    def _is_held_back(self, row: InboxRow) -> bool:
        """An earlier row of its key is not finished, or the event that it takes back is not."""
        if self._waits_for_its_event(row):
            return True
        key, topic = row.envelope.key, row.envelope.topic
        return key is not None and any(
            earlier.seq < row.seq
            and earlier.envelope.key == key
            and earlier.envelope.topic == topic
            and not self._waits_for_its_event(earlier)
            for earlier in self._open(row.group)
        )

    def _waits_for_its_event(self, row: InboxRow) -> bool:
        rollback = row.envelope
        if rollback.kind is not TxKind.ROLLBACK or rollback.causation_id is None:
            return False
        return any(
            event.group == row.group
            and event.settled_at is None
            and event.envelope.kind is TxKind.COMMIT
            and event.envelope.id == rollback.causation_id
            and rollback.causation_source in {None, event.envelope.source}
            for event in self._database.inbox.values()
        )

    def _carrying(self, attempt: Attempt, target: InboxStatus) -> InboxRow | None:
        """Find the row, if it still carries the attempt's token; raises Blocked when locked."""
        key = _key(attempt.group, attempt.envelope)
        row = self._database.inbox.get(key)
        if row is None or row.token != attempt.token or row.status not in _SOURCES[target]:
            return None
        self._database.free(key)
        return row

    def _all_carrying(self, attempts: Sequence[Attempt], target: InboxStatus) -> list[InboxRow]:
        rows = [self._carrying(attempt, target) for attempt in attempts]
        return [row for row in rows if row is not None]

    def _settle(self, row: InboxRow, target: InboxStatus) -> None:
        self._database.move_inbox(row, target, self._by)
        row.token = row.lease_until = None
        row.together = False
        row.settled_at = self._database.now


def _of(row: InboxRow) -> tuple[str, TxKind]:
    return row.envelope.type, row.envelope.kind


def _key(group: str, envelope: Envelope) -> tuple[str, UUID, str]:
    return (group, envelope.id, envelope.source)
