"""The inbox port in memory, like the SQL store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from shieldtx.domain.events import Envelope, rollback_of
from shieldtx.domain.states import INBOX, InboxStatus, TxKind
from shieldtx.errors import LeaseLost
from shieldtx.ports.inbox import Attempt, Handled, IncomingEvent, Origin, Original, Parked, Receipt
from tests.verification.simulation.database import (
    COMPENSATES,
    Database,
    DatabaseError,
    InboxRow,
    Transaction,
)
from tests.verification.simulation.inbox_receiver import (
    MemoryReceiver,
    business_key_of,
    key_of,
    open_rows,
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
"""In the `info` of a transaction: the event that is compensated in it, and since when."""

_SETTLED, _REFUSED = "settled", "refused"
"""In the `info` of a batch's transaction: how many rows it settles, and reasons of refusals."""

COMPENSATION = "compensation"
"""The first part of an advisory lock on (group, event), whether or not the event exists."""


class UniqueViolation(DatabaseError):
    """A unique key exists already."""


class MemorySavepoint:
    """A savepoint: the number of writes and locks at its beginning."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._begun = transaction.size

    def set_again(self, **_how: object) -> None:
        """Go on in the savepoint: a further `undo` returns to the same writes."""
        self._transaction.require()

    def renew(self, **_how: object) -> None:
        """Keep the writes since: a further `undo` returns to the present ones."""
        self._transaction.require()
        self._begun = self._transaction.size

    def release(self) -> None:
        """Keep the writes since."""
        self._transaction.require()

    def undo(self) -> bool:
        """Drop the writes and the locks since; False if the server has ended the transaction."""
        if self._transaction.open:
            self._transaction.cut(self._begun)
        return self._transaction.open


class MemoryInboxStore:
    """Receives, leases and settles inbox rows (the port InboxStore); `by` is the process."""

    def __init__(self, database: Database, *, by: str = "") -> None:
        self._database = database
        self._by = by
        self._receiver = MemoryReceiver(database, by=by)

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new."""
        return self._receiver.receive(group, arrivals, parked)

    def due(self, group: str, *, handled: Handled, limit: int) -> Sequence[Envelope]:
        """Return the unblocked due rows, in the order of arrival."""
        rows = [
            row
            for row in open_rows(self._database, group)
            if self._is_free(row) and _of(row) in handled
        ]
        return [row.envelope for row in rows if not self._is_blocked(row)][:limit]

    def longest_due(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return the unblocked row that has been due for longest."""
        rows = self._ready(group, handled)
        return min(rows, key=lambda row: (row.due_at, row.seq)).envelope if rows else None

    def newest_unattempted(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return the unblocked row without an attempt that arrived last."""
        rows = [row for row in self._ready(group, handled) if row.status is InboxStatus.INIT]
        return max(rows, key=lambda row: row.seq).envelope if rows else None

    def _ready(self, group: str, handled: Handled) -> list[InboxRow]:
        return [
            row
            for row in open_rows(self._database, group)
            if self._is_free(row) and _of(row) in handled and not self._is_blocked(row)
        ]

    def pending(self, group: str, *, handled: Handled) -> Mapping[Origin, int]:  # noqa: ARG002  as the port
        """Count nothing: the worlds are far below every limit."""
        return {}

    def unhandled(
        self, group: str, *, handled: Handled, limit: int
    ) -> Mapping[tuple[str, TxKind], int]:
        """Count the open rows without a handler, by type and kind."""
        rows = [_of(row) for row in open_rows(self._database, group) if _of(row) not in handled]
        return Counter(rows[:limit])

    def start_attempt(
        self,
        group: str,
        envelope: Envelope,
        *,
        lease: timedelta,
        max_attempts: int,
        is_probe: bool = False,
    ) -> Attempt | None:
        """Count an attempt, if the row is unblocked and no transaction has it locked."""
        db = self._database
        key = key_of(group, envelope)
        row = db.inbox.get(key)
        if (
            row is None
            or row.settled_at is not None
            or key in db.locks
            or row.status not in _MAY_START
            or not self._is_free(row)
            or self._is_blocked(row)
        ):
            return None
        if not is_probe:
            db.pauses.note_attempt(self._by, group, envelope, "starts an attempt at")
        db.move_inbox(row, InboxStatus.PROCESSING, self._by)
        self._count(row)
        row.together = is_probe
        row.due_at = db.now if is_probe else row.due_at
        row.token = token = db.next_token()
        row.lease_until = db.now + lease.total_seconds()
        if row.attempts <= max_attempts and not is_probe:
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
        """Open the transaction that contains PROCESSED and the handler's writes."""
        with self._database.transaction() as transaction:
            row = self._carrying(attempt, InboxStatus.PROCESSED)
            if row is None:
                raise LeaseLost(f"{attempt.envelope.id} was taken over")
            transaction.lock(key_of(attempt.group, attempt.envelope))
            locked_at = self._database.now

            def settle() -> None:
                self._settle(row, InboxStatus.PROCESSED, locked_at)
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
                transaction.lock(key_of(row.group, row.envelope))
            locked_at = self._database.now

            def settle() -> None:
                refused = transaction.info.get(_REFUSED, {})
                for row in rows[: transaction.info.get(_SETTLED)]:
                    reason = refused.get(row.envelope.id)
                    if reason is not None:
                        self._note_its_own(row)
                    target = InboxStatus.PROCESSED if reason is None else InboxStatus.MAX_RECONSUMED
                    self._settle(row, target, locked_at)
                    row.last_error = reason

            transaction.write(settle)
            yield transaction
            for row in rows:
                if row.envelope.id in transaction.info.get(_REFUSED, {}):
                    transaction.lock(key_of(row.group, row.envelope), writes=True)
                    if business_key := business_key_of(row.group, row.envelope):
                        transaction.lock(business_key, writes=True)

    def settle_only(self, session: Transaction, attempts: Sequence[Attempt]) -> None:
        """Make the transaction of a batch settle its first attempts only."""
        session.require()
        session.info[_SETTLED] = len(attempts)

    def savepoint(self, session: Transaction, **_how: object) -> MemorySavepoint:
        """Set a savepoint."""
        session.require()
        return MemorySavepoint(session)

    def refuse(self, session: Transaction, attempt: Attempt, *, reason: str) -> None:
        """Make the transaction of a batch settle an attempt as MAX_RECONSUMED."""
        session.require()
        session.info.setdefault(_REFUSED, {})[attempt.envelope.id] = reason

    def reset_session(self, session: Transaction) -> None:
        """Check the transaction; these sessions need no reset."""
        session.require()

    def note_effect(self, session: Transaction) -> None:
        """Check the transaction; there are no savepoints."""
        session.require()

    def ends_after(self, session: Transaction, *_of_it: object) -> bool:
        """Return False: handlers leave no state in a transaction."""
        session.require()
        return False

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Take back the counted start of attempts that still own their row."""
        for row in self._all_carrying(attempts, InboxStatus.PROCESSING):
            self._database.move_inbox(row, InboxStatus.PROCESSING, self._by)
            self._database.turns[key_of(row.group, row.envelope)] -= not row.together
            self._uncount(row)
            row.token = row.lease_until = None

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Let the row wait for its next attempt."""
        row = self._carrying(attempt, InboxStatus.PROCESSING)
        if row is None:
            return False
        self._note_defect(attempt, reason)
        self._database.move_inbox(row, InboxStatus.PROCESSING, self._by)
        self._note_its_own(row)
        row.token = row.lease_until = None
        row.due_at = self._database.now + delay.total_seconds()
        row.last_error = reason
        return True

    def defer(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Take back the counted start of an attempt, and let the row wait."""
        row = self._carrying(attempt, InboxStatus.PROCESSING)
        if row is None:
            return False
        self.release([attempt])
        row.due_at = self._database.now + delay.total_seconds()
        row.last_error = reason
        return True

    def note(self, attempts: Sequence[Attempt], *, reason: str) -> None:
        """Record why the process of these attempts ends."""
        for row in self._all_carrying(attempts, InboxStatus.PROCESSING):
            row.last_error = reason

    def give_up(
        self,
        attempt: Attempt,
        *,
        reason: str,
        in_transaction: Callable[[Transaction], Any] | None,
        parked: bool = False,
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, with `in_transaction` in its transaction."""
        is_dead = parked or attempt.envelope.kind is TxKind.ROLLBACK
        target = InboxStatus.DEAD if is_dead else InboxStatus.MAX_RECONSUMED
        row = self._carrying(attempt, target)
        if row is None:
            return False
        with self._database.transaction() as transaction:
            transaction.lock(key_of(attempt.group, attempt.envelope), writes=True)
            if business_key := business_key_of(attempt.group, attempt.envelope):
                transaction.lock(business_key, writes=True)
            settled_at = self._database.now

            self._note_defect(attempt, reason)

            def settle() -> None:
                self._note_its_own(row)
                self._settle(row, target, settled_at)
                row.attempts, row.last_error = attempt.number, reason

            transaction.write(settle)
            if in_transaction is not None:
                in_transaction(transaction)
        return True

    def original(
        self, session: Transaction, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        """Find and lock the event that a rollback takes back."""
        db, rollback = self._database, attempt.envelope
        original_id = rollback.causation_id
        if original_id is None:
            return None
        status = None
        if written_here:
            session.lock((COMPENSATION, attempt.group, original_id))
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
        """Let the rollback's row name its original when it is settled."""
        original_id = attempt.envelope.causation_id
        if original_id is not None:
            session.info[_COMPENSATED] = original_id, self._database.now

    def _note_compensated(self, session: Transaction, attempt: Attempt) -> None:
        """Name the original in the row that is settled; raises UniqueViolation for a second row."""
        db = self._database
        if _COMPENSATED not in session.info:
            return
        original_id, since = session.info[_COMPENSATED]
        if any(
            row.group == attempt.group and row.compensated_id == original_id
            for row in db.inbox.values()
        ):
            raise UniqueViolation("UNIQUE constraint failed: compensated_id")
        session.lock(("compensated", attempt.group, original_id))
        row = db.inbox[key_of(attempt.group, attempt.envelope)]

        def note() -> None:
            row.compensated_id, row.settled_at = original_id, since

        session.write(note)

    def fence(self, session: Transaction, attempt: Attempt) -> bool:
        """Write the tombstone of an event whose rollback arrived first."""
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
        key = key_of(attempt.group, tombstone)
        # Its number is drawn before the wait, and its row exists from the commit on.
        row = self._receiver.new_row(attempt.group, tombstone, InboxStatus.FENCED)
        if session.holds(key):
            return False
        self._database.free_for_insert(key, session)
        if key in self._database.inbox:
            return False
        session.lock(key, writes=True)
        session.write(lambda: self._receiver.commit(row))
        return True

    def fence_parked(self, session: Transaction, attempt: Attempt) -> None:
        """Settle the DEAD event that a rollback takes back as FENCED."""
        rollback = attempt.envelope
        key = (attempt.group, rollback.causation_id, rollback.causation_source or "")
        row, settled_at = self._database.inbox[key], self._database.now
        if row.status is not InboxStatus.DEAD or row.envelope.kind is not TxKind.COMMIT:
            raise LookupError(f"{row.envelope.kind} that is {row.status}: only DEAD events")
        session.write(lambda: self._settle(row, InboxStatus.FENCED, settled_at))

    def replay(self, row: InboxRow) -> None:
        """Let an operator process a DEAD row again, with all its attempts."""
        self._database.free(key_of(row.group, row.envelope))
        if row.status is InboxStatus.DEAD:
            self._database.move_inbox(row, InboxStatus.PROCESSING, self._by)
            row.attempts, row.due_at, row.settled_at = 0, self._database.now, None

    def discard(self, row: InboxRow) -> bool:
        """Let an operator discard a row; False if it is not DEAD."""
        self._database.free(key_of(row.group, row.envelope))
        if row.status is not InboxStatus.DEAD:
            return False
        self._settle(row, InboxStatus.DISCARDED, self._database.now)
        return True

    def refuse_dead(self, row: InboxRow, *, rollback_id: UUID, source: str) -> None:
        """Let an operator end a DEAD event with its rollback event."""
        self._database.free(key_of(row.group, row.envelope))
        if row.status is not InboxStatus.DEAD:
            return
        rollback = rollback_of(row.envelope, source=source, reason="", event_id=rollback_id)
        with self._database.transaction() as transaction:
            settled_at = self._database.now
            transaction.write(lambda: self._settle(row, InboxStatus.MAX_RECONSUMED, settled_at))
            self._database.insert_outbox(transaction, rollback)

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

    def _count(self, row: InboxRow) -> None:
        """Count an attempt, but not again one that may have died of a neighbour's."""
        row.attempts += 0 if row.together else 1
        row.together = False

    def _uncount(self, row: InboxRow) -> None:
        row.attempts -= 1
        row.together = False

    def _note_its_own(self, row: InboxRow) -> None:
        """Note that an attempt in a batch failed because of this row."""
        self._database.turns[key_of(row.group, row.envelope)] += row.together
        row.together = False

    def _is_free(self, row: InboxRow) -> bool:
        now = self._database.now
        return row.due_at <= now and (row.lease_until is None or row.lease_until <= now)

    def _is_blocked(self, row: InboxRow) -> bool:
        """Return whether an earlier row of its key, or the event of a rollback, is unfinished."""
        if self._waits_for_its_event(row):
            return True
        key, topic = row.envelope.key, row.envelope.topic
        return key is not None and any(
            earlier.seq < row.seq
            and earlier.envelope.key == key
            and earlier.envelope.topic == topic
            and not self._waits_for_its_event(earlier)
            for earlier in open_rows(self._database, row.group)
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
        """Find the row, if it still has the attempt's token, even if it is free."""
        key = key_of(attempt.group, attempt.envelope)
        row = self._database.inbox.get(key)

        def carries_it() -> bool:
            return row is not None and row.token == attempt.token and row.status in _SOURCES[target]

        if carries_it():
            self._database.free(key)
        return row if carries_it() else None

    def _all_carrying(self, attempts: Sequence[Attempt], target: InboxStatus) -> list[InboxRow]:
        rows = [self._carrying(attempt, target) for attempt in attempts]
        return [row for row in rows if row is not None]

    def _note_defect(self, attempt: Attempt, reason: str) -> None:
        """Note a problem if the failure of a handler that is known as paused is counted."""
        if reason.startswith("Defect:"):
            self._database.pauses.note_attempt(
                self._by, attempt.group, attempt.envelope, "counts a failure of"
            )

    def _settle(self, row: InboxRow, target: InboxStatus, settled_at: float) -> None:
        self._database.move_inbox(row, target, self._by)
        self._database.pauses.note_end(self._by, row, target)
        row.token = row.lease_until = None
        row.together = False
        row.settled_at = settled_at


def _of(row: InboxRow) -> tuple[str, TxKind]:
    return row.envelope.type, row.envelope.kind
